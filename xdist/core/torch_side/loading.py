"""`torch.load(..., map_location="xla")`: the file's tensors arrive on the device."""

import functools
from collections import Counter
from typing import Any

import torch

from torch_xdist.arena import ToXlaTensorArena
from torch_xdist.core.devices import device as devices_here
from torch_xdist.core.devices import transfer
from torch_xdist.releases import patches


def to_device(data: Any, device: str | torch.device, *, owned: bool = False) -> Any:
    """The same data with its CPU tensors on the device; tensors that were one stay one.

    Args:
        owned: nobody else has these tensors; see `transfer.all_to_device`.
    """
    index = devices_here.index_of(device)

    def move(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        alone = _alone(tensors) if owned else []
        moved: dict[int, torch.Tensor] = {}
        # Those without a copy are one transfer, and so are the others.
        for is_owned in (True, False):
            some = [n for n in range(len(tensors)) if (n in alone) is is_owned]
            hosts = [tensors[n].detach() for n in some]
            moved |= zip(some, transfer.all_to_device(hosts, index, owned=is_owned), strict=True)
        return [_as_before(tensor, moved[n]) for n, tensor in enumerate(tensors)]

    arena = ToXlaTensorArena(
        move,
        lambda value: isinstance(value, torch.Tensor) and value.device.type == "cpu",
        keep_tuples=True,
    )
    return arena.transform(data)


def _alone(tensors: list[torch.Tensor]) -> set[int]:
    """The numbers of those whose memory no other one has: on a device it would be theirs, too."""
    strided = {n: t for n, t in enumerate(tensors) if t.layout is torch.strided}
    users = Counter(t.untyped_storage().data_ptr() for t in strided.values())
    return {
        n
        for n, t in strided.items()
        if users[t.untyped_storage().data_ptr()] == 1 and t.is_contiguous()
    }


def _as_before(tensor: torch.Tensor, moved: torch.Tensor) -> torch.Tensor:
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(moved, requires_grad=tensor.requires_grad)
    return moved.requires_grad_(tensor.requires_grad)


_load_torch = torch.load


@functools.wraps(_load_torch)
def load(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
    """`torch.load`, which knows the location "xla"."""
    named = isinstance(map_location, str | torch.device)
    if named and str(map_location).partition(":")[0] == "xla":
        # What was read is nobody else's; what is mapped would read the file later.
        owned = not kwargs.get("mmap")
        return to_device(_load_torch(f, "cpu", *args, **kwargs), map_location, owned=owned)
    return _load_torch(f, map_location, *args, **kwargs)


def register() -> None:
    """Teach torch.load the location "xla"; a second call changes nothing.

    torch restores storages, which device tensors do not have, so the file is loaded onto the CPU
    and its tensors are moved.
    """
    patches.replace("torch.load", load)
