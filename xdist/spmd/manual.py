"""Sharding by hand: a tensor stands for what its device holds, and the user calls collectives."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import torch

from torch_xdist.core.devices.tensor import XlaTensor
from torch_xdist.core.record.jax_ops import record_jax
from torch_xdist.core.run.manual_region import FULL_TO_SHARD, SHARD_TO_FULL
from torch_xdist.core.sharding.tiling import MANUAL, Tiling
from torch_xdist.errors import ShardingError
from torch_xdist.spmd import marks
from torch_xdist.spmd.annotations import AnyTensor, mark_sharding, wrap_as_sharded_tensor
from torch_xdist.spmd.mesh import Mesh, PartitionSpec, checked_spec, mesh_or_global
from torch_xdist.spmd.sharded_tensor import XLAShardedTensor, unwrapped


def enable_manual_sharding(
    t: AnyTensor, partition_spec: PartitionSpec, *, mesh: Mesh | None = None
) -> XLAShardedTensor:
    """Shard a tensor; the result stands for the part that each device holds, of the part's shape.

    What is computed from it is computed by each device on its own part; nothing is exchanged but
    by collectives that the script calls, whose groups are numbers of devices. In the end
    `disable_manual_sharding` says what the parts make together.

    Args:
        mesh: the global mesh where none is given.
    """
    found = mesh_or_global(mesh, "enable_manual_sharding")
    marked = mark_sharding(unwrapped(t), found, partition_spec)
    part = full_to_shard(unwrapped(marked))
    return wrap_as_sharded_tensor(part, found.mesh_shape, tuple(partition_spec))


def disable_manual_sharding(
    t: AnyTensor,
    partition_spec: PartitionSpec,
    full_shape: Sequence[int],
    *,
    mesh: Mesh | None = None,
) -> XLAShardedTensor:
    """The tensor of `full_shape` that the devices' parts make together, sharded by the spec.

    Args:
        mesh: the global mesh where none is given.
    """
    found = mesh_or_global(mesh, "disable_manual_sharding")
    spec = checked_spec("disable_manual_sharding", full_shape, partition_spec)
    whole = shard_to_full(unwrapped(t), found.tiling(spec), full_shape)
    return wrap_as_sharded_tensor(whole, found.mesh_shape, spec)


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
    marks.layout("enable_manual_sharding")
    marks.BY_HAND.add(tiling)

    def part(x: jax.Array) -> jax.Array:
        return jnp.zeros(tiling.shard_shape(x.shape), x.dtype)

    return record_jax(FULL_TO_SHARD, part, [source], tiling)[0]


def shard_to_full(tensor: torch.Tensor, tiling: Tiling, shape: Sequence[int]) -> XlaTensor:
    """What the devices' parts make together."""
    of = "_spmd_shard_to_full_shape"
    source = marks.on_device(tensor, of)
    if not marks.is_manual(source):
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

    def whole(x: jax.Array) -> jax.Array:
        return jnp.zeros(tuple(shape), x.dtype)

    return record_jax(SHARD_TO_FULL, whole, [source], (tiling, tuple(shape)))[0]
