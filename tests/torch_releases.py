"""Names of torch that tests use and that its releases spell differently, each in one place."""

import contextlib

import torch
import torch.distributed as dist

# torch 2.13 made the reduction itself callable.
premul_sum = dist.ReduceOp.PREMUL_SUM if torch.__version__ >= "2.13" else dist._make_nccl_premul_sum

# New names in 2.13 for what stays there under the old ones.
all_gather_single = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
reduce_scatter_single = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)
record_comm = getattr(dist, "record_comm", lambda name: contextlib.nullcontext())

# DTensor flattens dims of which another than the first is divided.
FLATTENS_DIVIDED_DIMS = torch.__version__ >= "2.12"


def all_to_all(outputs: list[torch.Tensor], inputs: list[torch.Tensor]) -> None:
    """`dist.all_to_all`, which gloo got in 2.13."""
    if dist.get_backend() != "gloo" or torch.__version__ >= "2.13":
        dist.all_to_all(outputs, inputs)
        return
    whole = torch.empty_like(torch.stack(outputs))
    dist.all_to_all_single(whole, torch.stack(inputs))
    for output, part in zip(outputs, whole):
        output.copy_(part)
