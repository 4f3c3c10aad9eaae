"""What each device of this process holds of a tensor, read and written on the host."""

from collections.abc import Sequence
from dataclasses import dataclass
from types import EllipsisType
from typing import Any

import torch

from torch_xdist.core.devices.tensor import XlaTensor
from torch_xdist.core.devices.transfer import to_host
from torch_xdist.core.run.device_trace import trace_here
from torch_xdist.core.trace.values import hardware_name
from torch_xdist.errors import ShardingError
from torch_xdist.spmd import marks


@dataclass
class XLAShard:
    """What one device holds of a tensor, on the host, as it was when it was asked for.

    Attributes:
        data: padded with zeros where the tensor is cut unevenly.
        indices: which part of the tensor it is, without the padding; Ellipsis where it is all.
        shard_device: the device, such as "CPU:0".
        replica_id: which of the devices that hold the same.
    """

    data: torch.Tensor
    indices: EllipsisType | list[slice]
    shard_device: str
    replica_id: int

    def _inner(self) -> Any:
        if self.indices is Ellipsis:
            return Ellipsis
        return tuple(slice(0, part.stop - part.start) for part in self.indices)  # type: ignore[union-attr]

    @property
    def unpadded_data(self) -> torch.Tensor:
        """The data without the padding."""
        return self.data[self._inner()]

    @unpadded_data.setter
    def unpadded_data(self, tensor: torch.Tensor) -> None:
        self.data[self._inner()] = tensor


def local_shards(tensor: XlaTensor) -> list[XLAShard]:
    """What each device of this process holds of a tensor, by their numbers."""
    here, buffer, tiling = marks.placed(tensor, "local_shards")
    by_device = {shard.device: shard.data for shard in buffer.addressable_shards}
    parts = {number: (copy, part) for number, copy, part in tiling.parts(tensor.shape)}
    found = []
    for number, place in enumerate(here.devices):
        if place not in by_device:
            continue
        copy, part = parts[number]
        data = to_host(by_device[place], tensor.dtype)
        if tiling.is_replicated:
            # It has padding where it was to be cut in a way that the devices' order has not.
            data = data[tuple(map(slice, tensor.shape))]
        indices = Ellipsis if tiling.is_replicated else [slice(p.start, p.stop, 1) for p in part]
        replica = number if tiling.is_replicated else copy
        found.append(XLAShard(data, indices, hardware_name(place), replica))
    return found


def load_local_shards(tensor: XlaTensor, shards: Sequence[torch.Tensor]) -> None:
    """Make these what the devices of this process hold of a tensor.

    Raises ShardingError where the tensor is not sharded, and for shards that do not fit.
    """
    tiling = marks.tiling_of(tensor)
    if tiling is None or tiling.is_replicated:
        raise ShardingError(
            f"load_local_shards_: the tensor of shape {list(tensor.shape)} is not sharded, so every"
            " device holds all of it; write to the tensor itself"
        )
    if shards and shards[0].dtype != tensor.dtype:
        raise ShardingError(
            f"load_local_shards_: the shards are {shards[0].dtype}, and the tensor is"
            f" {tensor.dtype}; cast them"
        )
    # As `local_shards` tells it, also where the order of the devices is another than the tiling's.
    here = marks.layout("load_local_shards_")
    lies = here.tiling(here.sharding(tiling), tensor.dim())
    buffer = marks.from_shards(shards, tensor.shape, lies, "load_local_shards_")
    value = tensor.value
    source = marks.new_tensor(buffer, tensor.shape, tensor.dtype, tiling).value
    trace_here(value.trace.device).write(value, source)
