"""Rank processes with an xla device each, for tests: one world per pool, kept for a whole file."""

import os
import socket
import sys
from collections.abc import Callable, Sequence
from typing import Any

import cloudpickle
from rank_pool import RankPool

_PRELOAD = [
    "torch",
    "torch_xdist.core.torch_side.registration",
    "torch_xdist.ranks.c10d.backend",
    "cloudpickle",
]


class DeviceRanks:
    """`size` ranks. `run` calls a function (rank, size, ...) on each.

    `per_host` says how many each host has, in order; (): all are on one. The hosts are this
    machine, but their ranks share no memory.
    """

    def __init__(self, size: int, per_host: Sequence[int] = (), **environment: str) -> None:
        self.size = size
        self._pool = RankPool(size, _PRELOAD)
        self._pool.run(size, _become, _free_port(), per_host, environment, join=False)

    def run(self, function: Callable[..., Any], *arguments: Any, timeout_s: float = 120.0) -> Any:
        """What the function returned on each rank."""
        return self._pool.run(self.size, function, *arguments, timeout_s=timeout_s, join=False)

    def outcomes(self, function: Callable[..., Any], *arguments: Any) -> list[tuple[bool, Any]]:
        """What happened on each rank, as `RankPool.outcomes` says; a rank that died is no more."""
        return self._pool.outcomes(self.size, function, *arguments, join=False)

    def __enter__(self) -> "DeviceRanks":
        return self

    def __exit__(self, *failure: object) -> None:
        self._pool.__exit__(*failure)


def _become(
    rank: int, size: int, port: int, per_host: Sequence[int], environment: dict[str, str]
) -> None:
    from torch_xdist import settings, world
    from torch_xdist.core.torch_side import registration

    host_of = [host for host, count in enumerate(per_host or [size]) for _ in range(count)]
    host = host_of[rank]
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank - host_of.index(host)),
        WORLD_SIZE=str(size),
        LOCAL_WORLD_SIZE=str(host_of.count(host)),
        GROUP_RANK=str(host),
        GROUP_WORLD_SIZE=str(max(host_of) + 1),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        **environment,
    )
    settings.reread()
    world.forget()
    registration.register()


def on_threads(count: int, function: Callable[..., Any], timeout_s: float = 120.0) -> list[Any]:
    """What the function (rank, count) returned in each thread of one process with that many
    devices."""
    module = sys.modules[function.__module__]
    cloudpickle.register_pickle_by_value(module)
    try:
        with RankPool(1, _PRELOAD) as fresh:
            return fresh.run(1, _threads, count, function, timeout_s=timeout_s, join=False)[0]
    finally:
        cloudpickle.unregister_pickle_by_value(module)


def _threads(rank: int, size: int, count: int, function: Callable[..., Any]) -> list[Any]:
    from torch_xdist import settings
    from torch_xdist.core.torch_side import registration
    from torch_xdist.ranks import replicas

    os.environ["CPU_NUM_DEVICES"] = str(count)
    settings.reread()
    registration.register()
    return list(replicas.spawn_threads(lambda thread: function(thread, count)).values())


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
