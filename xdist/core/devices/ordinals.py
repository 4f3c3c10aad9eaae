"""Which rank is this, of how many, on which host: `world.py` by torch_xla's names."""

import socket
import sys
from typing import Any, TextIO

import jax

from torch_xdist import settings, world
from torch_xdist.core.devices import device


def get_ordinal(defval: int = 0) -> int:
    """The rank, 0 to world_size - 1; `defval` where only one rank runs."""
    return world.rank() if world.world_size() > 1 else defval


def get_local_ordinal(defval: int = 0) -> int:
    """The rank within its host; `defval` where only one rank runs."""
    return world.current().local_rank if world.world_size() > 1 else defval


def xrt_world_size(defval: int = 1) -> int:
    """How many ranks the job has; `defval` where only one runs."""
    return world.world_size() if world.world_size() > 1 else defval


def is_master_ordinal(local: bool = True) -> bool:
    """True on rank 0 of each host, or with `local=False` on rank 0 of the job."""
    return (world.current().local_rank if local else world.process_index()) == 0


def master_print(
    *args: Any, fd: TextIO | None = None, local: bool = False, flush: bool = False
) -> None:
    """`print` on rank 0 only (of each host, with `local`), to stdout or `fd`."""
    if is_master_ordinal(local=local):
        print(*args, file=fd or sys.stdout, flush=flush)


def global_ordinal() -> int:
    """The rank, 0 to world_size - 1."""
    return world.rank()


def local_ordinal() -> int:
    """The rank within its host."""
    return world.current().local_rank


def world_size() -> int:
    """How many ranks the job has."""
    return world.world_size()


def host_index() -> int:
    """Which host this is, 0 to the number of hosts - 1."""
    return world.current().host_index


def process_index() -> int:
    """The number of this process among all of the job."""
    return world.of_process().rank


def process_count() -> int:
    """How many processes the job has."""
    return world.of_process().world_size


def local_process_count() -> int:
    """How many processes of the job run on this host."""
    return world.of_process().local_world_size


def addressable_device_count() -> int:
    """How many devices this process drives."""
    return device.device_count()


def local_device_count() -> int:
    """How many devices the processes of this host drive together."""
    return local_process_count() * device.device_count()


def global_device_count() -> int:
    """How many devices the processes of the job drive together."""
    # Threads that are ranks divide the devices of one process.
    processes = 1 if world.replica() else world.world_size()
    return processes * device.device_count()


def addressable_runtime_device_count() -> int:
    """How many devices of the hardware this process drives, also where xla:0 stands for all."""
    layout = device.layout()
    if layout is None:
        return device.device_count()
    return sum(d.process_index == jax.process_index() for d in layout.devices)


def global_runtime_device_count() -> int:
    """How many devices of the hardware the job has, also where xla:0 stands for all."""
    layout = device.layout()
    return global_device_count() if layout is None else len(layout.devices)


def get_master_ip() -> str:
    """The address of the host of rank 0; its name where that cannot be resolved."""
    name = settings.current().master_address
    try:
        return socket.gethostbyname(name)
    except OSError:
        return name
