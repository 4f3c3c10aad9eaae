"""Devices by the names scripts of every age call them: `xla:0`, `TPU:0`, kinds and counts.

Each function answers what torch_xla answered: 2019's lists of kinds, later single strings, and
today's plain counts. `device.py` holds the facts.
"""

import resource
from collections.abc import Sequence
from typing import Any, TypedDict

import psutil
import torch

from torch_xdist.core.devices import device as devices_here
from torch_xdist.errors import DeviceError

_CUDA_NAMES = {"GPU", "CUDA"}
_KIB = 1024


class MemoryInfo(TypedDict):
    """The memory of a device. Sizes are in bytes, those that begin with kb_ in KiB."""

    bytes_used: int
    bytes_limit: int
    peak_bytes_used: int
    kb_free: int
    kb_total: int


class DeviceContext:
    """What a script keeps for one device: any attributes.

    Attributes:
        device: its name.
    """

    def __init__(self, device: str | torch.device) -> None:
        self.device = device


_contexts: dict[str, DeviceContext] = {}


def device_context(device: str | torch.device | None = None) -> DeviceContext:
    """The one context of a device, or of this thread's."""
    name = str(devices_here.device() if device is None else device)
    return _contexts.setdefault(name, DeviceContext(name))


def xla_device(n: int | None = None, devkind: str | Sequence[str] | None = None) -> torch.device:
    """The device `xla:n`, which becomes this thread's default; without `n` the default itself.

    Raises DeviceError for an index out of range, and where no device is of the kind asked for.
    """
    if devkind is not None and not _is_kind(devkind):
        raise DeviceError(
            f"xla_device: No devices of {devkind} kind; this process has"
            f" {devices_here.device_type()} devices"
        )
    return devices_here.device(n)


def get_xla_supported_devices(
    *places: Any, max_devices: int | None = None, devkind: str | Sequence[str] | None = None
) -> list[str] | None:
    """["xla:0", ...], at most `max_devices` of them; None where no device is of the kind.

    Args:
        places: `max_devices`, or as up to 2.3 `devkind` and `max_devices`; a kind is no number.
        devkind: "TPU", or a list of kinds of which any will do; None: every device.
    """
    if len(places) > 2:
        raise TypeError(
            f"get_xla_supported_devices: {len(places)} arguments; give it max_devices, or devkind"
            " and max_devices"
        )
    for value in places:
        if isinstance(value, int):
            max_devices = value
        elif value is not None:
            devkind = value
    if devkind is not None and not _is_kind(devkind):
        return None
    return [str(d) for d in devices_here.devices()][:max_devices] or None


def _is_kind(devkind: str | Sequence[str]) -> bool:
    kinds = {kind.upper() for kind in ([devkind] if isinstance(devkind, str) else devkind)}
    if kinds & _CUDA_NAMES:
        kinds |= _CUDA_NAMES
    return devices_here.device_type() in kinds


def xla_real_devices(devices: Sequence[str | torch.device] | None = None) -> list[str]:
    """The hardware behind the devices: ["xla:0"] -> ["CPU:0"]. All devices when none are given."""
    real = devices_here.real_devices()
    if devices is None:
        return real
    return [real[devices_here.check_index(devices_here.index_of(d))] for d in devices]


def xla_device_hw(device: str | torch.device) -> str:
    """CPU, TPU or CUDA: the hardware behind an xla device."""
    return devices_here.real_devices()[devices_here.index_of(device)].partition(":")[0]


def xla_device_kind(device: str | torch.device | None = None) -> str:
    """The maker's name of the hardware, such as "TPU v4" or "cpu"."""
    return devices_here.jax_device(devices_here.index_of(device)).device_kind


def parse_xla_device(device: str) -> tuple[str, int] | None:
    """("TPU", 1) from "TPU:1"; None for anything else."""
    kind, _, number = device.partition(":")
    if kind in {"CPU", "GPU", "CUDA", "TPU"} and number.isdecimal():
        return kind, int(number)
    return None


def is_xla_tensor(tensor: Any) -> bool:
    """True for a tensor of an xla device."""
    return tensor.device.type == "xla"


def xla_replication_devices(local_devices: Sequence[str | torch.device] | None = None) -> list[str]:
    """The hardware names of the devices that replicate one model.

    Raises DeviceError where they are fewer than this process has: replicas are all or one.
    """
    real = devices_here.real_devices()
    asked = real if local_devices is None else xla_real_devices(local_devices)
    if len(asked) not in (1, len(real)):
        raise DeviceError(
            f"xla_replication_devices: Cannot replicate if number of devices ({len(asked)}) is"
            f" different from {len(real)}; name one device or all of them"
        )
    return asked


def get_memory_info(device: str | torch.device | None = None) -> MemoryInfo:
    """Memory of a device, in bytes and, for older scripts, in KiB.

    Returns bytes_used, bytes_limit, peak_bytes_used, kb_free, kb_total. A CPU device answers for
    this process and its machine.
    """
    stats = devices_here.memory_stats(devices_here.index_of(device)) or _host_memory()
    used, limit = stats["bytes_in_use"], stats.get("bytes_limit", 0)
    return {
        "bytes_used": used,
        "bytes_limit": limit,
        "peak_bytes_used": stats.get("peak_bytes_in_use", used),
        "kb_free": max(limit - used, 0) // _KIB,
        "kb_total": limit // _KIB,
    }


def _host_memory() -> dict[str, int]:
    own = psutil.Process().memory_info()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _KIB
    return {
        "bytes_in_use": own.rss,
        "bytes_limit": psutil.virtual_memory().total,
        "peak_bytes_in_use": max(peak, own.rss),
    }
