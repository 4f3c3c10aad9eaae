"""Tensor subclasses of others that wrap device tensors: they say `xla` where autograd sees `lazy`.

A subclass that is made for the device of what it wraps (torch's jagged nested tensors, a library's
quantized weights, a user's own) would be on xla:N for torch's C++, whose autograd has no queue for
such a device and fails in the backward pass. It is made for lazy:N, as ours are, and its class gets
a `device` that says where that is, unless it has one.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch

from torch_xdist.core.devices.tensor import AUTOCAST_KEYS
from torch_xdist.releases import patches

_TARGET = "torch.Tensor._make_wrapper_subclass"
# Its arguments after the class, in their order.
_NAMES = (
    *("size", "strides", "storage_offset", "memory_format", "dtype", "layout", "device"),
    *("pin_memory", "requires_grad", "dispatch_sizes_strides_policy", "dispatch_device"),
    *("dispatch_layout", "_extra_dispatch_keys", "storage_size"),
)
# What torch traces with runs no graph, and its autocast goes by the device that it has in C++.
_TRACING = "torch._subclasses."
_device_of = torch.Tensor.device.__get__  # type: ignore[attr-defined]


def _device(self: torch.Tensor) -> torch.device:
    """Where the tensor is, in the words of users."""
    found = _device_of(self)
    return torch.device("xla", found.index) if found.type == "lazy" else found


def _on_lazy(usual: Callable[..., torch.Tensor]) -> Any:
    @functools.wraps(usual)
    def _make_wrapper_subclass(cls: type, *args: Any, **kwargs: Any) -> torch.Tensor:
        given = {**dict(zip(_NAMES, args)), **kwargs}
        device = torch.device(given.get("device") or "cpu")
        if device.type != "xla" or cls.__module__.startswith(_TRACING):
            return usual(cls, *args, **kwargs)
        keys = given.get("_extra_dispatch_keys")
        given["_extra_dispatch_keys"] = AUTOCAST_KEYS if keys is None else keys | AUTOCAST_KEYS
        given["device"] = torch.device("lazy", device.index or 0)
        if cls.device is torch.Tensor.device:  # type: ignore[attr-defined]
            patches.mark(f"{_TARGET}.*.device", [(cls, property(_device))])
        return usual(cls, given.pop("size"), **given)

    return staticmethod(_make_wrapper_subclass)


def register() -> None:
    """Have classes of others made for the device that torch's autograd knows."""
    patches.wrap(_TARGET, _on_lazy)
