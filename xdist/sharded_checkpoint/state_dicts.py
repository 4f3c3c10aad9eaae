"""State dicts with sharded tensors: flat, apart from the rest, and copied to the host in parts."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.checkpoint._traverse import traverse_state_dict as _traverse
from torch.utils._pytree import tree_map

from torch_xdist.spmd.annotations import wrap_if_sharded
from torch_xdist.spmd.marks import unwrapped
from torch_xdist.spmd.op_sharding import ShardingType
from torch_xdist.spmd.sharded_tensor import XLAShardedTensor
from torch_xdist.spmd.shards import XLAShard, local_shards

Path = tuple[str | int, ...]


@dataclass
class CpuShards:
    """What the devices of this process hold of a tensor, copied to the host."""

    shards: list[XLAShard]
    global_shape: torch.Size


def is_sharded_tensor(x: Any) -> bool:
    """Whether the devices hold different parts of it."""
    return isinstance(x, XLAShardedTensor) and x.sharding_type != ShardingType.REPLICATED


def keep_visiting_tensors(value: object) -> bool:
    """Whether a list or dict with this value in it is taken apart."""
    return isinstance(value, torch.Tensor | CpuShards)


def traverse_state_dict(
    state_dict: Mapping[str, Any], visitor: Any, keep_traversing: Any = keep_visiting_tensors
) -> None:
    """Call `visitor(path, value)` for every value; containers without tensors are values."""
    _traverse(dict(state_dict), visitor, keep_traversing)


def flatten_state_dict(state_dict: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Path]]:
    """The values by their paths joined with dots, and the path of each.

    Raises ValueError where two paths give one name.
    """
    flat: dict[str, Any] = {}
    paths: dict[str, Path] = {}

    def enter(path: Path, value: Any) -> None:
        name = ".".join(map(str, path))
        if name in flat:
            raise ValueError(f"duplicated flatten key {name}: {paths[name]} and {path}")
        flat[name] = value
        paths[name] = path

    traverse_state_dict(state_dict, enter)
    return flat, paths


def separated(flat: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Sharded tensors, and everything else as it was."""
    wrapped = {name: wrap_if_sharded(value) for name, value in flat.items()}
    sharded = {
        name: value
        for name, value in wrapped.items()
        if is_sharded_tensor(value) or isinstance(value, CpuShards)
    }
    rest = {name: tree_map(unwrapped, v) for name, v in wrapped.items() if name not in sharded}
    return sharded, rest


def cpu_shards_from_tensors(tensors: Sequence[torch.Tensor]) -> list[CpuShards]:
    """Copies on the host of what the devices of this process hold of each tensor."""
    return [CpuShards(local_shards(t), t.shape) for t in tensors]  # type: ignore[arg-type]


def sharded_cpu_state_dict(state_dict: dict[str, Any]) -> dict[str, Any]:
    """A copy of the state dict on the host: sharded tensors as their local parts, others whole."""

    def to_host(value: Any) -> Any:
        wrapped = wrap_if_sharded(value)
        if is_sharded_tensor(wrapped):
            return cpu_shards_from_tensors([wrapped.global_tensor])[0]
        if isinstance(value, torch.Tensor):
            plain = unwrapped(value).detach()
            return plain.clone() if plain.device.type == "cpu" else plain.cpu()
        return copy.deepcopy(value)

    return tree_map(to_host, state_dict)  # type: ignore[no-any-return]
