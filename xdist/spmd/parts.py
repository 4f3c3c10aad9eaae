"""What each device holds of a tensor that is sharded by hand, and what the parts make together."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import torch

from torch_xdist.core.alias.views import write
from torch_xdist.core.devices.tensor import XlaTensor
from torch_xdist.core.programs.manual_region import FULL_TO_SHARD, SHARD_TO_FULL
from torch_xdist.core.record.jax_ops import record_jax
from torch_xdist.core.run import manual_values
from torch_xdist.core.sharding.tiling import MANUAL, Tiling, replicated
from torch_xdist.errors import ShardingError
from torch_xdist.spmd import marks


def full_to_shard(tensor: torch.Tensor) -> XlaTensor:
    """What each device holds of a tensor that is marked. Raises ShardingError where it is not."""
    of = "_spmd_full_to_shard_shape"
    source = marks.on_device(tensor, of)
    tiling = marks.tiling_of(source)
    if tiling is None or tiling is MANUAL:
        raise ShardingError(f"{of}: Sharding spec is not set on the tensor; mark it first")
    return part_of(source, tiling)


def part_of(source: XlaTensor, tiling: Tiling) -> XlaTensor:
    """What each device holds of a tensor that is sharded so."""
    _check_places("enable_manual_sharding", tiling)
    manual_values.BEGAN_AS.add(tiling)

    def part(x: jax.Array) -> jax.Array:
        return jnp.zeros(tiling.shard_shape(x.shape), x.dtype)

    return record_jax(FULL_TO_SHARD, part, [source], tiling)[0]


def shard_to_full(tensor: torch.Tensor, tiling: Tiling, shape: Sequence[int]) -> XlaTensor:
    """What the devices' parts make together."""
    of = "_spmd_shard_to_full_shape"
    source = marks.on_device(tensor, of)
    if not manual_values.is_manual(source.value):
        raise ShardingError(
            f"{of}: a tensor of shape {list(source.shape)} is not sharded by hand: manual sharding"
            " is expected; pass it to xs.enable_manual_sharding first"
        )
    wanted = tiling.shard_shape(shape)
    if tuple(source.shape) != wanted:
        raise ShardingError(
            f"{of}: each device's part has shape {list(source.shape)}; a tensor of shape"
            f" {list(shape)} sharded as {tiling.text} has parts of {list(wanted)}"
        )

    _check_places("disable_manual_sharding", tiling)

    def whole(x: jax.Array) -> jax.Array:
        return jnp.zeros(tuple(shape), x.dtype)

    return record_jax(SHARD_TO_FULL, whole, [source], (tiling, tuple(shape)))[0]


def _check_places(of: str, tiling: Tiling) -> None:
    """Raise ShardingError where a device would hold another part than the mesh says."""
    here = marks.layout(of)
    if not here.is_along_axes(tiling):
        raise ShardingError(
            f"{of}: the sharding {tiling.text} does not lie along axes of the first mesh of this"
            f" process, whose factors are {list(here.mesh.devices.shape)} and whose devices are"
            f" {list(here.order)}, so devices would hold other parts than it says; use meshes of"
            " the first one's order and factors"
        )


def mark_manual(tensor: XlaTensor) -> None:
    """Let a tensor that is not computed yet stand for what each device holds: its own copy."""
    if manual_values.is_manual(tensor.value):
        return
    if tensor.value.buffer is not None:
        raise ShardingError(
            "_mark_manual_sharding: the tensor is computed already, so there is no program to mark"
            " it in; use xs.enable_manual_sharding"
        )
    here = marks.layout("_mark_manual_sharding")
    write(tensor.value, part_of(tensor, replicated(tensor.dim(), here.order)).value)
