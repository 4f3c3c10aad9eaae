"""What torch finds as `torch.xla`: the functions every device module has."""

import contextlib
import time
import warnings
from collections.abc import Iterator
from typing import Any

import torch

from torch_xdist import dtypes
from torch_xdist.core.devices import device as devices
from torch_xdist.core.devices import device_names, rng, steps
from torch_xdist.core.run.device_trace import is_forked
from torch_xdist.releases.hooks import XLA

# Activation checkpointing saves a device's random state only where its module says so.
_initialized = True


def is_available() -> bool:
    return True


def is_initialized() -> bool:
    return devices.is_started()


def _is_in_bad_fork() -> bool:
    return is_forked()


def device_count() -> int:
    return devices.device_count()


def current_device() -> int:
    return devices.default_index()


def set_device(target: Any) -> None:
    devices.set_default_index(devices.index_of(target))


@contextlib.contextmanager
def device(target: Any) -> Iterator[None]:
    before = devices.default_index()
    set_device(target)
    try:
        yield
    finally:
        devices.set_default_index(before)


def synchronize(target: Any = None) -> None:
    """Run what is pending and wait until the device is done."""
    steps.wait_device_ops([] if target is None else [target])


def get_rng_state(target: Any = None) -> torch.Tensor:
    """The stream's state as a CPU tensor, as every device module gives it."""
    return torch.tensor([rng.get_rng_state(target)], dtype=torch.int64).view(torch.uint8)


def set_rng_state(state: torch.Tensor, target: Any = None) -> None:
    rng.set_rng_state(int(state.cpu().view(torch.int64).item()), target)


def manual_seed(seed: int) -> None:
    rng.seed_all(seed)


def manual_seed_all(seed: int) -> None:
    rng.seed_all(seed)


def get_amp_supported_dtype() -> list[torch.dtype]:
    return [torch.bfloat16, torch.float16]


def supported_dtypes() -> set[torch.dtype]:
    """The dtypes that tensors on the device can have."""
    return {dtype for dtype in dtypes.XLA_NAMES if devices.holds(dtype)}


def empty_cache() -> None:
    """JAX frees buffers with their last reference; there is no cache of ours to empty."""


def memory_allocated(target: Any = None) -> int:
    """The bytes in use on the device; on a CPU this process'. 0 before its first use."""
    return memory_stats(target).get("allocated_bytes.all.current", 0)


def max_memory_allocated(target: Any = None) -> int:
    """The most bytes that were in use since the start."""
    return memory_stats(target).get("allocated_bytes.all.peak", 0)


# JAX tells what is in use, not what its allocator keeps besides.
memory_reserved, max_memory_reserved = memory_allocated, max_memory_allocated


def memory_stats(target: Any = None) -> dict[str, int]:
    """What JAX tells of the device's memory in bytes, by torch's names; {} before its first use."""
    if not devices.is_started():
        return {}
    found = device_names.get_memory_info(target)
    now, peak = found["bytes_used"], found["peak_bytes_used"]
    return {
        f"{kind}_bytes.all.{which}": value
        for kind in ("allocated", "reserved")
        for which, value in (("current", now), ("peak", peak))
    }


def mem_get_info(target: Any = None) -> tuple[int, int]:
    """The device's free bytes, and all of its bytes."""
    found = device_names.get_memory_info(target)
    return found["bytes_limit"] - found["bytes_used"], found["bytes_limit"]


def reset_peak_memory_stats(target: Any = None) -> None:
    """Nothing but a warning: JAX counts from the start of the process."""
    warnings.warn(
        "torch.xla.reset_peak_memory_stats: JAX keeps one peak of a device's memory, from the start"
        " of the process; max_memory_allocated goes on from there",
        stacklevel=2,
    )


reset_max_memory_allocated = reset_peak_memory_stats


def reset_accumulated_memory_stats(target: Any = None) -> None:
    """Nothing: JAX accumulates no counts."""


class Event:
    """A point in the work of a stream. There is one stream, so nothing has to wait for it.

    Args:
        enable_timing: the event is for `elapsed_time`: what was recorded runs, and `record` waits
            for it, which is a cut.
    """

    def __init__(self, enable_timing: bool = False, *options: Any, **named: Any) -> None:
        self._is_timed = enable_timing
        self._at: float | None = None

    def record(self, stream: Any = None) -> "Event":
        if self._is_timed:
            synchronize()
            self._at = time.perf_counter()
        return self

    def elapsed_time(self, end: "Event") -> float:
        """The milliseconds from this event to another."""
        if not (self._is_timed and end._is_timed):
            raise ValueError("torch.xla.Event: both events must be created with enable_timing=True")
        if self._at is None or end._at is None:
            raise ValueError("torch.xla.Event: both events must be recorded first")
        return (end._at - self._at) * 1e3

    def wait(self, stream: Any = None) -> None:
        """Nothing: what is recorded later runs later."""

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        """Wait until the device has done what was recorded so far."""
        synchronize()


class Stream:
    """The order of a device's work, which is the order of its calls."""

    stream_id, device_index, device_type = 0, 0, XLA

    def __init__(self, *options: Any, **named: Any) -> None:
        pass

    @property
    def device(self) -> torch.device:
        """The present device."""
        return torch.device("xla", devices.default_index())

    def wait_stream(self, stream: Any) -> None:
        """Nothing, as `Event.wait`."""

    def wait_event(self, event: Any) -> None:
        """Nothing, as `Event.wait`."""

    def record_event(self, event: Event | None = None) -> Event:
        return event or Event()

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        """Wait until the device has done what was recorded so far."""
        synchronize()


_STREAM = Stream()


def current_stream(target: Any = None) -> Stream:
    """The stream of this process: there is one, whatever the device."""
    return _STREAM


@contextlib.contextmanager
def stream(chosen: Any) -> Iterator[None]:
    """Nothing changes inside."""
    yield
