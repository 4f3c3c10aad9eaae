"""`torch.accelerator`: today's scripts ask it for the device, and it is xla.

torch knows the accelerators it was compiled for. Where one of them is available it stays torch's;
else what torch asks its C++ is answered here. Nothing starts JAX's backend but the choice of a
device: launchers are imported by processes that may not touch one.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch

from torch_xdist.core.devices import device as devices
from torch_xdist.core.torch_side import device_module
from torch_xdist.releases import patches

_XLA = torch.device("xla")
_ask_torch: Callable[[], torch.device | None] = torch._C._accelerator_getAccelerator


@functools.cache
def is_xla() -> bool:
    """Whether the accelerator is xla: torch has none of its own that is available."""
    own = _ask_torch()
    return own is None or not torch.get_device_module(own).is_available()


def _set_index(index: int) -> None:
    # A negative one means the present one.
    if index >= 0 and index != devices.default_index():
        devices.set_default_index(index)


def _exchange(index: int) -> int:
    before = devices.default_index()
    _set_index(index)
    return before


def _synchronize(index: int) -> None:
    if devices.is_started():
        device_module.synchronize(index)


def _capability(index: int) -> dict[str, Any]:
    return {"supported_dtypes": device_module.supported_dtypes()}


# What torch asks its C++.
_ANSWERS: dict[str, Callable[..., Any]] = {
    "_get_accelerator": lambda check=False: _XLA,
    "_accelerator_getAccelerator": lambda: _XLA,
    "_accelerator_getDeviceIndex": devices.default_index,
    "_accelerator_setDeviceIndex": _set_index,
    "_accelerator_exchangeDevice": _exchange,
    "_accelerator_maybeExchangeDevice": _exchange,
    "_accelerator_getDeviceCapability": _capability,
    "_accelerator_getStream": device_module.current_stream,
    "_accelerator_setStream": lambda stream: None,
    "_accelerator_synchronizeDevice": _synchronize,
    "_accelerator_isAllocatorInitialized": devices.is_started,
    "_accelerator_emptyCache": device_module.empty_cache,
    "_accelerator_emptyHostCache": device_module.empty_cache,
    "_accelerator_getDeviceStats": device_module.memory_stats,
    "_accelerator_resetAccumulatedStats": device_module.reset_accumulated_memory_stats,
    "_accelerator_resetPeakStats": device_module.reset_peak_memory_stats,
    "_accelerator_getMemoryInfo": device_module.mem_get_info,
}


def _answering(usual: Callable[..., Any], answer: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *given, **named: (answer if is_xla() else usual)(*given, **named)


def _copied_to_no_pinned_memory(usual: Callable[..., Any]) -> Callable[..., torch.Tensor]:
    @functools.wraps(usual)
    def pin_memory(self: torch.Tensor, *args: Any, **named: Any) -> torch.Tensor:
        if self.device.type != "cpu" or not is_xla():
            return usual(self, *args, **named)
        return self.clone()

    return pin_memory


def _without_pinned_memory(usual: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(usual)
    def __init__(self: Any, loader: Any) -> None:
        usual(self, loader)
        if is_xla():
            self._pin_memory, self._pin_memory_device = False, None

    return __init__


def register() -> None:
    """Have torch take xla for the accelerator; a second call changes nothing.

    JAX takes memory to a device from wherever it lies, so nothing is pinned: a tensor's
    `pin_memory` is a copy, and a DataLoader with `pin_memory` copies nothing.
    """
    for name, answer in _ANSWERS.items():
        patches.wrap(f"torch._C.{name}", functools.partial(_answering, answer=answer))
    patches.wrap("torch.Tensor.pin_memory", _copied_to_no_pinned_memory)
    patches.wrap("torch.utils.data.dataloader._BaseDataLoaderIter.__init__", _without_pinned_memory)
