"""Threads of one process as ranks: which thread trains which of the process' devices.

A thread that calls `set_replication` is from then on the rank of its device among the devices
named: `world.current()` says so, and its collectives meet those of the other threads.
"""

import threading
from collections.abc import Sequence

import torch

from torch_xdist import device, device_names, world
from torch_xdist.collectives import host
from torch_xdist.errors import DeviceError

_lock = threading.Lock()
_joined = [0]


def set_replication(
    device_: str | torch.device, devices: Sequence[str | torch.device] | None
) -> None:
    """Make this thread the replica on `device_` among `devices`; no devices: alone again.

    The device becomes the thread's default. Every thread must name the same devices.
    """
    device.set_default_index(device.index_of(device_))
    if not devices or len(devices) == 1:
        world.be_replica(None)
        return
    device_names.xla_replication_devices(devices)
    indices = [device.index_of(d) for d in devices]
    if indices != list(range(len(indices))) or device.index_of(device_) not in indices:
        raise DeviceError(
            f"set_replication({device_}): the devices are {list(map(str, devices))}; name every"
            " device of this process in order, and one of them"
        )
    _meet(len(indices))
    rank, count = device.index_of(device_), len(indices)
    world.be_replica(world.World(rank, count, rank, count))


def _meet(count: int) -> None:
    with _lock:
        if _joined[0] != count:
            host.threads(count)
            _joined[0] = count
