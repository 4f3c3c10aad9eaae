"""JAX's coordination service in a process of its own, so that no rank hosts what all ranks need.

The nursery forks this process from its warm image, one per attempt; jaxlib is loaded there already.
It serves until it is killed. A rank that dies takes nothing of it along: with `recoverable` the
others learn of the loss as an error they can catch.
"""

import os
import select
import signal
import socket
import threading

from torch_xdist.launcher import linux


def free_port(host: str = "127.0.0.1") -> int:
    """A TCP port that nobody listened on a moment ago."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def serve(ready: int, address: str, world_size: int, heartbeat_s: int) -> None:
    """Serve `world_size` ranks at `address`; write one byte to `ready` when up. Never returns."""
    from jaxlib import _jax  # type: ignore[attr-defined]

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    service = _jax.get_distributed_runtime_service(
        address,
        world_size,
        heartbeat_timeout=heartbeat_s,
        shutdown_timeout=heartbeat_s,
        recoverable=True,
    )
    os.write(ready, b"\n")
    os.close(ready)
    threading.Event().wait()
    service.shutdown()


def fork(address: str, world_size: int, heartbeat_s: int = 100, limit_s: float = 20.0) -> int:
    """Start the service in a child of this process; its process id once it listens, 0 if it failed.

    It fails where the port was taken in the meantime: choose another.
    """
    ready, written = os.pipe()
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            linux.die_with_parent()
            os.close(ready)
            if os.getppid() == parent:
                _silence()
                serve(written, address, world_size, heartbeat_s)
        finally:
            os._exit(1)
    os.close(written)
    with open(ready, "rb", buffering=0) as pipe:
        up = _readable(pipe.fileno(), limit_s) and pipe.read(1) == b"\n"
    if not up:
        linux.kill(pid, signal.SIGKILL)
    return pid if up else 0


def _silence() -> None:
    """The service's own log lines ("task died") are no news: the launcher says who failed."""
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    os.setsid()


def _readable(fd: int, limit_s: float) -> bool:
    return bool(select.select([fd], [], [], limit_s)[0])
