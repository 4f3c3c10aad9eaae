"""JAX's coordination service in a process of its own, so that no rank hosts what all ranks need.

The nursery forks this process from its warm image, one per attempt; jaxlib is loaded there already.
It serves until it is killed. A rank that dies takes nothing of it along: with `recoverable` the
others learn of the loss as an error they can catch. Ranks that exchange through shared memory never
talk to it, and get none.
"""

import os
import random
import signal
import socket
import threading
import time
from pathlib import Path

from torch_xdist.system import addresses, process_tree
from torch_xdist.system.process import Child

_TRIES = 5
_LIMIT_S = 20.0
_HEARTBEAT_S = 100
_CLIENT_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_port(host: str = "127.0.0.1") -> int:
    """A TCP port that nobody listens on; whether the next number is free is not looked at.

    Outside the range from which the kernel gives ports to clients: it must still be free when a
    rank binds it, seconds later.
    """
    try:
        first, last = map(int, _CLIENT_PORTS.read_text().split())
    except (OSError, ValueError):
        first, last = 32768, 60999
    outside = [*range(last + 1, 65535)] or [*range(10_000, first)]
    for port in (*random.sample(outside, min(50, len(outside))), 0):
        with socket.socket(addresses.family(host), socket.SOCK_STREAM) as probe:
            try:
                probe.bind((host, port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise AssertionError("port 0 is always free")


class CoordinatorStart:
    """The service on its way: `fileno` becomes readable when it listens, or could not.

    Where the port was taken in the meantime another one is tried, 5 in all.
    """

    def __init__(self, host: str, world_size: int, limit_s: float = _LIMIT_S) -> None:
        self._host, self._world_size, self._limit_s = host, world_size, limit_s
        self._tries = 0
        self._fork()

    def fileno(self) -> int:
        return self._ready

    def left_s(self) -> float:
        """Seconds until this try counts as failed."""
        return max(0.0, self._until_s - time.monotonic())

    def address(self) -> str | None:
        """Where it listens; "" for not yet (`fileno` is another one then), None for never."""
        said = os.read(self._ready, 1) if self.left_s() > 0 else b""
        os.close(self._ready)
        if said == b"\n":
            return self._address
        self._child.kill()
        self._child.wait()
        if self._tries >= _TRIES:
            return None
        self._fork()
        return ""

    def _fork(self) -> None:
        self._tries += 1
        self._until_s = time.monotonic() + self._limit_s
        self._address = addresses.joined(self._host, free_port(self._host))
        self._ready, written = os.pipe2(os.O_CLOEXEC)
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            try:
                process_tree.die_with_parent()
                os.close(self._ready)
                if os.getppid() == parent:
                    _silence()
                    serve(written, self._address, self._world_size)
            finally:
                os._exit(1)
        os.close(written)
        self._child = Child(pid)


def serve(ready: int, address: str, world_size: int) -> None:
    """Serve `world_size` ranks at `address`; write one byte to `ready` when up. Never returns."""
    from jaxlib import _jax  # type: ignore[attr-defined]

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    service = _jax.get_distributed_runtime_service(
        address,
        world_size,
        heartbeat_timeout=_HEARTBEAT_S,
        shutdown_timeout=_HEARTBEAT_S,
        recoverable=True,
    )
    os.write(ready, b"\n")
    os.close(ready)
    threading.Event().wait()
    service.shutdown()


def _silence() -> None:
    """The service's own log lines ("task died") are no news: the launcher says who failed."""
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    os.setsid()
