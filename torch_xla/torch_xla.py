"""The names of the top level, under the module that has them in torch_xla."""

from torch_xdist.core.devices.device import device, device_count, devices, real_devices
from torch_xdist.core.devices.steps import sync
from torch_xdist.launcher.ways_in.spawn import launch
from torch_xdist.torch_xla_compat.random_seeds import manual_seed
from torch_xdist.training.compiled_step import compile, step

__all__ = [
    "compile",
    "device",
    "device_count",
    "devices",
    "launch",
    "manual_seed",
    "real_devices",
    "step",
    "sync",
]
