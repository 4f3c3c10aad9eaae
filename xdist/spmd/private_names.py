"""The private calls of torch_xla's that have to do with shardings."""

from collections.abc import Sequence
from typing import Any

import torch

from torch_xdist import settings, world
from torch_xdist.core.devices import device, transfer
from torch_xdist.core.devices.tensor import XlaTensor
from torch_xdist.core.run.manual_values import is_manual
from torch_xdist.core.sharding.tiling import Tiling
from torch_xdist.core.trace.values import hardware_name
from torch_xdist.errors import ShardingError
from torch_xdist.ranks import collective_ops
from torch_xdist.spmd import marks, mode, parts
from torch_xdist.spmd.marks import unwrapped
from torch_xdist.spmd.op_sharding import OpSharding, ShardingType, XlaShardingSpec, type_of
from torch_xdist.spmd.shards import load_local_shards, local_shards

__all__ = ["OpSharding", "XlaShardingSpec"]


def _tiling(sharding: OpSharding, rank: int, of: str) -> Tiling:
    """The tiling that an OpSharding means for a tensor of so many dims."""
    if sharding.type is ShardingType.MANUAL:
        raise ShardingError(f"{of}: MANUAL sharding; use _mark_manual_sharding")
    if sharding.tiling is None:
        return marks.whole_tiling(rank, of)
    dims = len(sharding.tiling.tiles)
    if dims != rank:
        raise ShardingError(
            f"{of}: the sharding {sharding} is for {dims} dims, and the tensor has {rank}"
        )
    return sharding.tiling


def _xla_mark_sharding(tensor: torch.Tensor, sharding: OpSharding) -> None:
    """`xs.mark_sharding` by an OpSharding."""
    target = marks.on_device(unwrapped(tensor), "_xla_mark_sharding")
    marks.mark(target, _tiling(sharding, target.dim(), "_xla_mark_sharding"))


def _xla_annotate_custom_sharding(tensor: torch.Tensor, sharding: OpSharding) -> None:
    """`xs.annotate_custom_sharding` by an OpSharding."""
    target = marks.on_device(unwrapped(tensor), "_xla_annotate_custom_sharding")
    marks.annotate(target, _tiling(sharding, target.dim(), "_xla_annotate_custom_sharding"))


def _xla_clear_sharding(tensor: torch.Tensor) -> None:
    """`xs.clear_sharding`."""
    marks.clear(marks.on_device(unwrapped(tensor), "_xla_clear_sharding"))


def _mark_manual_sharding(tensor: torch.Tensor, sharding: OpSharding | None = None) -> None:
    """Let a tensor that is not computed yet stand for what each device holds: its own copy."""
    parts.mark_manual(marks.on_device(unwrapped(tensor), "_mark_manual_sharding"))


def _spmd_full_to_shard_shape(tensor: torch.Tensor) -> XlaTensor:
    """What each device holds of a tensor that is marked."""
    return parts.full_to_shard(tensor)


def _spmd_shard_to_full_shape(
    tensor: torch.Tensor, sharding: OpSharding, shape: Sequence[int], dtype: torch.dtype
) -> XlaTensor:
    """What the devices' parts make together."""
    of = "_spmd_shard_to_full_shape"
    return parts.shard_to_full(tensor, _tiling(sharding, len(shape), of), shape)


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


def _get_xla_op_sharding(tensor: torch.Tensor) -> OpSharding | None:
    """A tensor's sharding as an object; None while that is open."""
    found = marks.tiling_of(unwrapped(tensor))
    return None if found is None else OpSharding.of(found)


def _get_xla_op_sharding_v2_params(tensor: torch.Tensor) -> Any:
    """None: shardings list their devices one by one here."""
    return None


def _get_local_shards(
    tensors: Sequence[torch.Tensor],
) -> list[list[tuple[torch.Tensor, str]]]:
    """(data on the host, device) of each local part of each tensor."""
    found = [local_shards(unwrapped(tensor)) for tensor in tensors]
    return [[(shard.data, shard.shard_device) for shard in shards] for shards in found]


def _get_local_shard_replica_and_indices(
    tensors: Sequence[torch.Tensor],
) -> list[list[tuple[int, Any]]]:
    """(which copy, which part) of each local part of each tensor."""
    found = [local_shards(unwrapped(tensor)) for tensor in tensors]
    return [[(shard.replica_id, shard.indices) for shard in shards] for shards in found]


def _load_local_shards(
    tensor: torch.Tensor, data: Sequence[torch.Tensor], devices: Sequence[str]
) -> None:
    """Make these what the local devices hold of a tensor."""
    load_local_shards(unwrapped(tensor), data)


def _global_tensor_from_cpu_shards(
    shards: Sequence[torch.Tensor],
    sharding: OpSharding,
    global_shape: Sequence[int] | None = None,
) -> XlaTensor:
    """The tensor that the local devices' parts make together.

    Args:
        global_shape: where the last parts are padded.
    """
    of = "_global_tensor_from_cpu_shards"
    if not shards:
        raise ShardingError(f"{of}: no shards; give one for each local device")
    rank = shards[0].dim() if global_shape is None else len(global_shape)
    tiling = _tiling(sharding, rank, of)
    shape = global_shape
    if shape is None:
        shape = [size * tiles for size, tiles in zip(shards[0].shape, tiling.tiles)]
    buffer = marks.from_shards(shards, shape, tiling, of)
    return marks.new_tensor(buffer, shape, shards[0].dtype, tiling)


def _xla_spmd_all_reduce(
    reduce_type: str, tensor: torch.Tensor, scale: float, groups: Sequence[Sequence[int]]
) -> XlaTensor:
    """`xm.all_reduce` of the parts of a tensor that is sharded by hand."""
    part = _by_hand("_xla_spmd_all_reduce", tensor)
    return collective_ops.all_reduce(reduce_type, part, scale, groups)  # type: ignore[no-any-return]


def _xla_spmd_reduce_scatter(
    reduce_type: str,
    tensor: torch.Tensor,
    scale: float,
    scatter_dim: int,
    shard_count: int,
    groups: Sequence[Sequence[int]],
) -> XlaTensor:
    """`xm.reduce_scatter` of the parts of a tensor that is sharded by hand."""
    part = _by_hand("_xla_spmd_reduce_scatter", tensor)
    given = reduce_type, part, scale, scatter_dim, shard_count, groups
    return collective_ops.reduce_scatter(*given)  # type: ignore[no-any-return]


def _by_hand(of: str, tensor: torch.Tensor) -> XlaTensor:
    """The device tensor. Raises ShardingError where it is whole."""
    source = marks.on_device(unwrapped(tensor), of)
    if not is_manual(source.value):
        raise ShardingError(
            f"{of}: a tensor of shape {list(source.shape)} is not sharded by hand; XLA inserts the"
            " collectives it needs. Pass it to xs.enable_manual_sharding first"
        )
    return source


def _xla_get_auto_sharding() -> bool:
    """Whether `use_spmd(auto=True)` was called."""
    return settings.auto_spmd() is not None


def _xla_set_auto_sharding() -> None:
    """`use_spmd(auto=True)`."""
    mode.use_spmd(auto=True)


def _xla_get_spmd_config_is_locked() -> bool:
    """Whether a device was used, so that SPMD mode comes late."""
    return device.is_started()


def _xla_force_spmd_device() -> None:
    """Make xla:0 stand for all devices, also late."""
    device.become_one()


def _xla_get_runtime_devices() -> list[str]:
    """The devices of the hardware that this process drives: ["CPU:0", ...]."""
    here = device.layout()
    if here is None:
        return device.real_devices()
    return [hardware_name(d) for d in here.devices if d in d.client.local_devices()]


def _xla_get_all_runtime_devices() -> list[str]:
    """The devices of the hardware that the job has."""
    here = device.layout()
    return device.real_devices() if here is None else [*map(hardware_name, here.devices)]


def _xla_num_runtime_devices() -> int:
    """How many devices of the hardware this process drives."""
    return len(_xla_get_runtime_devices())


def _xla_tensors_from_aten(
    tensors: Sequence[torch.Tensor],
    devices: Sequence[str],
    shardings: Sequence[XlaShardingSpec | None] | None = None,
) -> list[torch.Tensor]:
    """Each tensor on the device of the same place in `devices`, cut as `shardings` say.

    What needs gradients does so there as well.
    """
    of = "_xla_tensors_from_aten"
    result = []
    for i, tensor in enumerate(tensors):
        moved = transfer.to_device(tensor, devices[i])
        spec = shardings[i] if shardings is not None else None
        if spec is not None:
            target = marks.on_device(moved, of)
            tiling = _tiling(spec.sharding, tensor.dim(), of)
            if spec.minibatch and tensor.dim() > 0 and world.shares_device():
                moved = marks.of_all_processes(target, tiling)
            else:
                marks.mark(target, tiling)
        result.append(moved.requires_grad_(tensor.requires_grad))
    return result


def _xla_get_cpu_tensors(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Copies of the tensors on the host."""
    return [unwrapped(tensor).cpu() for tensor in tensors]
