"""Sharding by hand: a tensor stands for what its device holds, and the user calls collectives."""

from collections.abc import Sequence

from torch_xdist.spmd.annotations import (
    AnyTensor,
    mark_sharding,
    wrap_as_sharded_tensor,
    wrapped_over,
)
from torch_xdist.spmd.marks import on_device, unwrapped
from torch_xdist.spmd.mesh import Mesh, PartitionSpec, checked_spec, mesh_or_global
from torch_xdist.spmd.parts import full_to_shard, mark_manual, shard_to_full
from torch_xdist.spmd.sharded_tensor import XLAShardedTensor


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
    return wrapped_over(part, found, tuple(partition_spec))


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
    return wrapped_over(whole, found, spec)


def _mark_manual_sharding(t: AnyTensor) -> XLAShardedTensor:
    """Let a tensor that is not computed yet stand for what each device holds: its own copy."""
    mark_manual(on_device(unwrapped(t), "_mark_manual_sharding"))
    return wrap_as_sharded_tensor(t)
