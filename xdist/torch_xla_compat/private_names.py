"""The private calls that torch_xla's documents tell users to make, answered by the core."""

from collections.abc import Sequence

import torch

from torch_xdist import __version__, world
from torch_xdist.core.devices import device, device_names, rng, steps
from torch_xdist.torch_xla_compat import runtime_facts


def _xla_get_devices() -> list[str]:
    """["xla:0", ...]."""
    return [str(d) for d in device.devices()]


def _xla_real_devices(devices: Sequence[str] | None = None) -> list[str]:
    """["CPU:0", ...]: the hardware behind the devices, or behind all."""
    return device_names.xla_real_devices(devices)


def _xla_get_default_device() -> str:
    """This thread's device."""
    return str(device.device())


def _xla_get_replication_devices_count() -> int:
    """How many ranks train together; 0 for one alone, as torch_xla answers."""
    return world.world_size() if world.world_size() > 1 else 0


def _get_xla_tensor_dimension_size(tensor: torch.Tensor, dim: int) -> torch.Tensor:
    """The size of one dim, as a tensor on the device."""
    return torch.tensor(tensor.size(dim), device=tensor.device)


def _xla_set_rng_seed(seed: int, device_: str = "") -> None:
    """Seed one device, or this thread's."""
    rng.set_rng_state(seed, device_ or None)


def _xla_get_rng_seed(device_: str = "") -> int:
    """The state of one device's random numbers."""
    return rng.get_rng_state(device_ or None)


def _xla_step_marker(device_: str = "", devices: Sequence[str] = (), wait: bool = True) -> None:
    """End the step of one device, or of this thread's."""
    steps.sync(wait=wait, device_=device_ or None)


def _xla_wait_device_ops(devices: Sequence[str] = ()) -> None:
    """Block until everything launched is done."""
    steps.wait_device_ops(devices)


def _xla_set_mat_mul_precision(precision: str) -> None:
    """`torch_xla.backends.set_mat_mul_precision`."""
    runtime_facts.set_mat_mul_precision(precision)


def _xla_set_use_full_mat_mul_precision(use_full_mat_mul_precision: bool = True) -> None:
    """Exact float32 products, or the hardware's default."""
    runtime_facts.set_mat_mul_precision("highest" if use_full_mat_mul_precision else "default")


def _get_git_revs() -> dict[str, str]:
    """The versions of this package and of torch, in the place of git revisions."""
    return {"xla": __version__, "torch": torch.__version__}
