"""The private calls that torch_xla's documents tell users to make, answered by the core."""

import contextlib
from collections.abc import Iterator, Sequence

import jax
import torch

from torch_xdist import __version__, metrics, world
from torch_xdist.core.devices import device, device_names, rng, steps, transfer
from torch_xdist.core.run import cuts
from torch_xdist.core.run.device_trace import buffers_of
from torch_xdist.core.trace import donation
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


def _xla_get_tensor_id(tensor: torch.Tensor) -> int:
    """A number that tensors share exactly when they share memory."""
    return tensor.untyped_storage().data_ptr()


def _get_xla_tensor_dimension_size(tensor: torch.Tensor, dim: int) -> torch.Tensor:
    """The size of one dim, as a tensor on the device."""
    return torch.tensor(tensor.size(dim), device=tensor.device)


def _xla_set_rng_seed(seed: int, device_: str = "") -> None:
    """Seed one device, or this thread's."""
    rng.set_rng_state(seed, device_ or None)


def _xla_get_rng_seed(device_: str = "") -> int:
    """The state of one device's random numbers."""
    return rng.get_rng_state(device_ or None)


def _xla_sync_multi(
    tensors: Sequence[torch.Tensor],
    devices: Sequence[str] = (),
    wait: bool = True,
    sync_xla_data: bool = True,
) -> None:
    """Compute these tensors now.

    Args:
        sync_xla_data: programs may write into what nobody holds any more, and into what was given
            away (`_set_buffer_donation`). Otherwise only into the latter, and only where
            `_xla_set_enable_alias_with_buffer_donor_config` says so.
    """
    values = [t.value for t in tensors]  # type: ignore[attr-defined]
    rule = contextlib.nullcontext() if sync_xla_data else donation.only_given(_DONORS.enabled)
    with rule:
        buffers = buffers_of(values, reason="sync_multi") if values else []
    for buffer in buffers:
        # One that was given away may have gone to the program that was just run.
        if wait and not buffer.is_deleted():
            buffer.block_until_ready()


class _Donors:
    """Whether `_xla_sync_multi` without `sync_xla_data` takes what was given away."""

    enabled = False


_DONORS = _Donors()


def _xla_set_enable_alias_with_buffer_donor_config(should_alias: bool) -> None:
    """Let `_xla_sync_multi` without `sync_xla_data` take what was given away."""
    _DONORS.enabled = bool(should_alias)


def _xla_get_enable_alias_with_buffer_donor_config() -> bool:
    """Whether it does."""
    return _DONORS.enabled


@contextlib.contextmanager
def alias_with_buffer_donor_config(should_alias: bool = True) -> Iterator[None]:
    """Inside it, `_xla_sync_multi` without `sync_xla_data` takes what was given away, or not."""
    before = _DONORS.enabled
    _DONORS.enabled = should_alias
    try:
        yield
    finally:
        _DONORS.enabled = before


def _set_buffer_donation(tensor: torch.Tensor, should_donate: bool) -> bool:
    """Give a tensor's buffer to the next program that reads it, which leaves it without a value.

    Returns whether that is possible: a pending tensor, and a view, has no buffer of its own.
    """
    buffer = tensor.value.buffer  # type: ignore[attr-defined]
    if not isinstance(buffer, jax.Array):
        return False
    donation.give(buffer, should_donate)
    metrics.count("XlaSetBufferDonation")
    return True


def _get_buffer_donation(tensor: torch.Tensor) -> bool:
    """Whether a tensor's buffer was given away."""
    buffer = tensor.value.buffer  # type: ignore[attr-defined]
    return buffer is not None and donation.is_given(buffer)


def _xla_step_marker(device_: str = "", devices: Sequence[str] = (), wait: bool = True) -> None:
    """End the step of one device, or of this thread's."""
    steps.sync(wait=wait, device_=device_ or None)


def _xla_wait_device_ops(devices: Sequence[str] = ()) -> None:
    """Block until everything launched is done."""
    steps.wait_device_ops(devices)


def _xla_tensors_from_aten(
    tensors: Sequence[torch.Tensor], devices: Sequence[str]
) -> list[torch.Tensor]:
    """Each tensor on the device of the same place in `devices`."""
    return [transfer.to_device(tensor, where) for tensor, where in zip(tensors, devices)]


def _xla_set_mat_mul_precision(precision: str) -> None:
    """`torch_xla.backends.set_mat_mul_precision`."""
    runtime_facts.set_mat_mul_precision(precision)


def _xla_set_use_full_mat_mul_precision(use_full_mat_mul_precision: bool = True) -> None:
    """Exact float32 products, or the hardware's default."""
    runtime_facts.set_mat_mul_precision("highest" if use_full_mat_mul_precision else "default")


def _get_git_revs() -> dict[str, str]:
    """The versions of this package and of torch, in the place of git revisions."""
    return {"xla": __version__, "torch": torch.__version__}


def _set_allow_execution(allow: bool) -> bool:
    """Let programs run, or forbid it: then a cut raises CutError. Returns what held before."""
    before = cuts.PERMISSION.granted
    cuts.PERMISSION.granted = bool(allow)
    return before


def _get_allow_execution() -> bool:
    """Whether programs may run."""
    return cuts.PERMISSION.granted
