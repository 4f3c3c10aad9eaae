"""`torch.load(..., map_location="xla")`: the file's tensors arrive on the device."""

import functools
from typing import Any

import torch

from torch_xdist.arena import ToXlaTensorArena
from torch_xdist.core.devices import device as devices_here
from torch_xdist.core.devices import transfer
from torch_xdist.releases import patches


def to_device(data: Any, device: str | torch.device) -> Any:
    """The same data with its CPU tensors on the device; tensors that were one stay one."""
    index = devices_here.index_of(device)

    def move(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        return [_moved(tensor, index) for tensor in tensors]

    arena = ToXlaTensorArena(
        move,
        lambda value: isinstance(value, torch.Tensor) and value.device.type == "cpu",
        keep_tuples=True,
    )
    return arena.transform(data)


def _moved(tensor: torch.Tensor, index: int) -> torch.Tensor:
    moved = transfer.to_device(tensor.detach(), index)
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(moved, requires_grad=tensor.requires_grad)
    return moved.requires_grad_(tensor.requires_grad)


_load_torch = torch.load


@functools.wraps(_load_torch)
def load(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
    """`torch.load`, which knows the location "xla"."""
    named = isinstance(map_location, str | torch.device)
    if named and str(map_location).partition(":")[0] == "xla":
        return to_device(_load_torch(f, "cpu", *args, **kwargs), map_location)
    return _load_torch(f, map_location, *args, **kwargs)


def register() -> None:
    """Teach torch.load the location "xla"; a second call changes nothing.

    torch restores storages, which device tensors do not have, so the file is loaded onto the CPU
    and its tensors are moved.
    """
    patches.replace("torch.load", load)
