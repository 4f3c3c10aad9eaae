"""The private calls of torch_xla's that have to do with shardings."""

from collections.abc import Sequence

import torch

from torch_xdist.spmd import marks
from torch_xdist.spmd.op_sharding import ShardingType, type_of
from torch_xdist.spmd.sharded_tensor import unwrapped


def _get_xla_sharding_spec(tensor: torch.Tensor) -> str:
    """How a tensor is sharded, as XLA's HLO spells it; "" while that is open."""
    found = marks.tiling_of(unwrapped(tensor))
    return "" if found is None else found.text


def _get_xla_sharding_specs(tensors: Sequence[torch.Tensor]) -> list[str]:
    """`_get_xla_sharding_spec` of each."""
    return [*map(_get_xla_sharding_spec, tensors)]


def _get_xla_sharding_type(tensor: torch.Tensor) -> ShardingType | None:
    """The kind of a tensor's sharding; None while that is open."""
    found = marks.tiling_of(unwrapped(tensor))
    return None if found is None else type_of(found)
