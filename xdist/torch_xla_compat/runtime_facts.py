"""The runtime by torch_xla's names: platform, topology, cache, precision.

What can still be chosen is chosen before the first use of a device; later it is an error.
"""

import logging
import os
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import torch

from torch_xdist import metrics, settings
from torch_xdist.core.devices import aim
from torch_xdist.core.devices import device as devices_here
from torch_xdist.core.devices.precision import PRECISIONS, choose, chosen
from torch_xdist.core.trace.values import hardware_name
from torch_xdist.errors import DeviceError

logger = logging.getLogger("torch_xla.backends")
_WARNING_MESSAGE = (
    "the precision of matrix products is set; steps that ran before are compiled anew. Setting it"
    " more than once is not recommended"
)
# As torch_xla's signatures name them.
R = TypeVar("R")
FN = TypeVar("FN", bound=Callable[..., Any])


def device_type() -> str | None:
    """CPU, TPU or CUDA: from PJRT_DEVICE where it is set, else the platform that was found.

    None only where PJRT_SELECT_DEFAULT_DEVICE=0 asks that no platform be looked for.
    """
    named = settings.pjrt_device()
    if named:
        return named.split("_")[0].upper()
    return devices_here.device_type() if settings.selects_platform() else None


def set_device_type(pjrt_device: str) -> None:
    """Choose the platform, before the first use of a device.

    Raises DeviceError (a RuntimeError) where another platform already runs.
    """
    if _is_started() and devices_here.device_type() != pjrt_device.upper():
        raise DeviceError(
            f"set_device_type({pjrt_device!r}): the runtime is already initialised with"
            f" {devices_here.device_type()}; call it before the first use of an xla device"
        )
    settings.set_platform(pjrt_device)


def _is_started() -> bool:
    # By the private name that tests of scripts replace, where `torch_xla` was imported.
    face = sys.modules.get("torch_xla._XLAC")
    return face._xla_runtime_is_initialized() if face else devices_here.is_started()


def initialize_cache(path: str | os.PathLike[str], readonly: bool = False) -> None:
    """Keep compiled programs in the folder `path`, and find those of earlier runs there.

    With `readonly` nothing is added. Call it before the first use of a device: programs compiled
    earlier are not in the cache.
    """
    if devices_here.is_started():
        raise DeviceError(
            "initialize_cache: a device is already in use; call it before the first one"
        )
    settings.set_cache(os.fspath(path), readonly)


def get_num_cached_compilation_graph() -> int:
    """How many programs this process has compiled."""
    return metrics.counter_value("UncachedCompile") or 0


def is_bf16_supported() -> bool:
    """True where bfloat16 tensors can be made, which is everywhere."""
    return torch.tensor([1.0], dtype=torch.bfloat16, device="xla").dtype == torch.bfloat16


def runtime_device_attributes(device: str | torch.device) -> dict[str, Any]:
    """What JAX knows about one device: id, kind, process, and coordinates on a TPU."""
    return _attributes(devices_here.jax_device(devices_here.index_of(device)))


def global_runtime_device_attributes() -> list[dict[str, Any]]:
    """`runtime_device_attributes` of every device of the job that JAX can see."""
    return [_attributes(d) for d in aim.devices()]


def _attributes(jax_device: jax.Device) -> dict[str, Any]:
    facts = {
        "name": hardware_name(jax_device),
        "device_kind": jax_device.device_kind,
        "process_index": jax_device.process_index,
    }
    for name in ("coords", "core_on_chip", "slice_index"):
        value = getattr(jax_device, name, None)
        if value is not None:
            facts[name] = value
    return facts


def set_mat_mul_precision(precision: str) -> None:
    """How exact a float32 matrix product is on hardware with less exact units.

    The log of "torch_xla.backends" warns, as torch_xla's does.

    Args:
        precision: "default", "high" or "highest". A step that ran before is
            compiled anew with it.
    """
    if precision not in PRECISIONS:
        raise ValueError(
            f"set_mat_mul_precision({precision!r}): it must be one of {', '.join(PRECISIONS)}"
        )
    logger.warning(_WARNING_MESSAGE)
    choose(precision)


def get_mat_mul_precision() -> str:
    """ "default", "high" or "highest"."""
    return chosen()
