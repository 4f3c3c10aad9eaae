"""Threads of one process as ranks: which thread trains which of the process' devices.

A thread that calls `set_replication` is from then on the rank of its device among the devices
named: `world.current()` says so, and its collectives meet those of the other threads.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

from torch_xdist import world
from torch_xdist.collectives.shared_memory import transport as shared_memory
from torch_xdist.core.devices import device as devices_here
from torch_xdist.core.devices import device_names
from torch_xdist.errors import DeviceError
from torch_xdist.system.rank import Rank
from torch_xdist.torch_xla_compat.script_tools import parallel_work

_lock = threading.Lock()
_joined = [0]


def set_replication(
    device: str | torch.device, devices: Sequence[str | torch.device] | None
) -> None:
    """Make this thread the replica on `device` among `devices`; no devices: alone again.

    The device becomes the thread's default. Every thread must name the same devices.
    """
    devices_here.set_default_index(devices_here.index_of(device))
    if not devices or len(devices) == 1:
        world.be_replica(None)
        shared_memory.set_rank_of_thread(None)
        return
    device_names.xla_replication_devices(devices)
    indices = [devices_here.index_of(d) for d in devices]
    if indices != list(range(len(indices))) or devices_here.index_of(device) not in indices:
        raise DeviceError(
            f"set_replication({device}): the devices are {list(map(str, devices))}; name every"
            " device of this process in order, and one of them"
        )
    _meet(len(indices))
    rank, count = devices_here.index_of(device), len(indices)
    world.be_replica(Rank(rank, count, rank, count))
    shared_memory.set_rank_of_thread(rank)


def is_replica() -> bool:
    """Whether this thread is one of several replicas."""
    return world.replica() is not None


def _meet(count: int) -> None:
    with _lock:
        if _joined[0] != count:
            shared_memory.threads(count)
            _joined[0] = count


def spawn_threads(fn: Callable[..., Any], args: tuple[Any, ...] = ()) -> dict[int, Any]:
    """`fn(rank, *args)` in one thread per device of this process; its results by rank."""
    devices = devices_here.devices()

    def work(index: int) -> Any:
        set_replication(devices[index], devices)
        try:
            return fn(index, *args)
        finally:
            set_replication(devices[index], [])

    return dict(enumerate(parallel_work(len(devices), work, range(len(devices)))))
