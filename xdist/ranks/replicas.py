"""Threads of one process as ranks: which thread trains which of the process' devices.

A thread that calls `set_replication` is from then on the rank of its device among the devices
named: `world.current()` says so, and its collectives meet those of the other threads.
"""

import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

from torch_xdist import world
from torch_xdist.collectives.shared_memory import transport as shared_memory
from torch_xdist.core.devices import device as devices_here
from torch_xdist.core.devices import device_names
from torch_xdist.errors import DeviceError
from torch_xdist.ranks import collective_ops
from torch_xdist.system.rank import Rank

_lock = threading.Lock()
_joined = [0]
_changes: list[Callable[[int], None]] = []


def at_changes(change: Callable[[int], None]) -> None:
    """Call this with a rank whenever a thread becomes it, or is it no longer."""
    _changes.append(change)


def set_replication(
    device: str | torch.device, devices: Sequence[str | torch.device] | None
) -> None:
    """Make this thread the replica on `device` among `devices`; no devices: alone again.

    The device becomes the thread's default. Every thread must name the same devices.
    """
    devices_here.set_default_index(devices_here.index_of(device))
    if not devices or len(devices) == 1:
        _leave()
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
    facts = Rank(rank, count, rank, count)
    if world.replica() != facts:
        _leave()
        _tell(rank)
        world.be_replica(facts)
    shared_memory.set_rank_of_thread(rank)


def _leave() -> None:
    left = world.replica()
    world.be_replica(None)
    shared_memory.set_rank_of_thread(None)
    if left is not None:
        _tell(left.rank)


def _tell(rank: int) -> None:
    with _lock:
        for change in _changes:
            change(rank)


def is_replica() -> bool:
    """Whether this thread is one of several replicas."""
    return world.replica() is not None


def _meet(count: int) -> None:
    with _lock:
        if _joined[0] != count:
            shared_memory.threads(count)
            _joined[0] = count


def spawn_threads(fn: Callable[..., Any], args: tuple[Any, ...] = ()) -> dict[int, Any]:
    """`fn(rank, *args)` in one thread per device of this process; its results by rank.

    The first exception of a thread comes out at once: the others may be waiting for that rank.
    """
    devices = devices_here.devices()
    ended: queue.SimpleQueue[tuple[int, Any, BaseException | None]] = queue.SimpleQueue()

    def work(index: int) -> None:
        try:
            set_replication(devices[index], devices)
            try:
                result = fn(index, *args)
                # As at the end of a process: other ranks may be waiting in them.
                collective_ops.run_pending()
            finally:
                set_replication(devices[index], [])
        except BaseException as error:
            ended.put((index, None, error))
        else:
            ended.put((index, result, None))

    for index in range(len(devices)):
        # Where one fails, the others may never end.
        name = f"rank {index} of {len(devices)}"
        threading.Thread(target=work, args=(index,), name=name, daemon=True).start()
    results = {}
    for _ in devices:
        index, result, error = ended.get()
        if error is not None:
            raise error
        results[index] = result
    return dict(sorted(results.items()))
