"""PLACEHOLDER for the lead's module: the collectives of one rank only (not committed)."""

import torch

REDUCE_SUM, REDUCE_MUL, REDUCE_AND, REDUCE_OR, REDUCE_MIN, REDUCE_MAX = (
    "sum",
    "mul",
    "and",
    "or",
    "min",
    "max",
)


def all_reduce(reduce_type, inputs, scale=1.0, groups=None, pin_layout=True):
    return inputs.clone() if isinstance(inputs, torch.Tensor) else inputs


def _later(*a, **k):
    raise NotImplementedError("collective_ops: being written")


all_gather = all_gather_bucketized = all_to_all = collective_permute = collective_broadcast = _later
reduce_scatter = reduce_scatter_bucketized = send = recv = optimization_barrier_ = _later


class CoalescingBuckets: ...
