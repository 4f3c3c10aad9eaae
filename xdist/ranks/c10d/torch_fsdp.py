"""torch's `FullyShardedDataParallel` on the device: what it asks of a device beside its tensors.

It makes devices of bare numbers, which torch takes for numbers of the accelerator it was built for;
here it gets this process' device. And it waits for the device so that units are not gathered too
far ahead; here a step is one program, whose order XLA chooses.

torch's module takes long to import, so it is completed when a script imports it.
"""

import functools
from typing import Any

import torch

from torch_xdist.core.torch_side import device_module
from torch_xdist.releases import late_imports, patch_table, patches, probes

_NAME = "torch.distributed.fsdp._common_utils"


def register() -> None:
    """Complete torch's module, now or when it is imported."""
    late_imports.when_imported(_NAME, _complete)


class _Event(device_module.Event):
    def synchronize(self) -> None:
        """Nothing, so that the step is not cut."""


class _Handle:
    """The device module, with these two differences."""

    Event = _Event

    def __getattr__(self, name: str) -> Any:
        return getattr(device_module, name)

    def current_device(self) -> torch.device:
        """This process' device."""
        return torch.device("xla", device_module.current_device())


def _complete(module: Any) -> None:
    probes.require(patch_table.TORCHS_FSDP)
    handle = module._FSDPDeviceHandle
    usual = handle.from_device  # bound to its class

    @functools.wraps(usual)
    def from_device(device: torch.device) -> Any:
        return handle(device, _Handle()) if device.type == "xla" else usual(device)

    patches.replace(f"{_NAME}._FSDPDeviceHandle.from_device", staticmethod(from_device))
