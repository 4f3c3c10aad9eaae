"""Rank processes with an xla device each, for tests: one world per pool, kept for a whole file."""

import os
import socket
from collections.abc import Callable
from typing import Any

from rank_pool import RankPool

_PRELOAD = ["torch", "torch_xdist.core.backend", "torch_xdist.ranks.process_group", "cloudpickle"]


class DeviceRanks:
    """`size` ranks of one host. `run` calls a function (rank, size, ...) on each."""

    def __init__(self, size: int, **environment: str) -> None:
        self.size = size
        self._pool = RankPool(size, _PRELOAD)
        self._pool.run(size, _become, _free_port(), environment, join=False)

    def run(self, function: Callable[..., Any], *arguments: Any, timeout_s: float = 120.0) -> Any:
        """What the function returned on each rank."""
        return self._pool.run(self.size, function, *arguments, timeout_s=timeout_s, join=False)

    def __enter__(self) -> "DeviceRanks":
        return self

    def __exit__(self, *failure: object) -> None:
        self._pool.__exit__(*failure)


def _become(rank: int, size: int, port: int, environment: dict[str, str]) -> None:
    from torch_xdist import settings, world
    from torch_xdist.core import backend

    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(size),
        LOCAL_WORLD_SIZE=str(size),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        **environment,
    )
    settings.reread()
    world.forget()
    backend.register()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
