"""Processes in SPMD mode with CPU devices of their own, for tests, which run inside them.

four = SpmdProcess(4)

@four
def test_...(): ...
"""

import functools
import os
import socket
import sys
from collections.abc import Callable
from typing import Any

import cloudpickle
import pytest
from rank_pool import RankPool

_PRELOAD = ["torch", "torch_xdist.core.torch_side.registration", "cloudpickle"]


class SpmdProcess:
    """Runs tests in a process of its own, which starts with the first of them.

    Args:
        devices: how many CPU devices it has.
        spmd: whether it is in SPMD mode from the start.
        processes: how many such processes there are, in one job; each runs all of a test.
    """

    def __init__(self, devices: int, *, spmd: bool = True, processes: int = 1) -> None:
        self.devices = devices
        self.spmd = spmd
        self.processes = processes
        self._pool: RankPool | None = None

    def __call__(self, test: Callable[..., None]) -> Callable[..., None]:
        """The test, which runs in the process; fixtures and parameters go there by value."""

        @functools.wraps(test)
        def here(*args: Any, **kwargs: Any) -> None:
            self.run(lambda: test(*args, **kwargs), test.__module__)

        return here

    def run(self, function: Callable[[], Any], module: str) -> Any:
        """What a function of a test module returns there, in the first of the processes.

        Its `pytest.skip` skips here.
        """
        count = self.processes
        if self._pool is None:
            self._pool = RankPool(count, _PRELOAD)
            self._pool.run(count, _become, self.devices, self.spmd, _free_port(), join=False)
        cloudpickle.register_pickle_by_value(sys.modules[module])
        try:
            result, *_ = self._pool.run(count, _call, function, join=False)
        finally:
            cloudpickle.unregister_pickle_by_value(sys.modules[module])
        if isinstance(result, pytest.skip.Exception):
            raise result
        return result


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def _become(rank: int, size: int, devices: int, spmd: bool, port: int) -> None:
    os.environ.update(CPU_NUM_DEVICES=str(devices), PJRT_DEVICE="CPU")
    if size > 1:
        # As torchrun says it of a process on each of several hosts.
        os.environ.update(RANK=str(rank), WORLD_SIZE=str(size), MASTER_PORT=str(port))
        os.environ.update(LOCAL_RANK="0", LOCAL_WORLD_SIZE="1", MASTER_ADDR="127.0.0.1")
        # With one the processes soon know who has ended.
        os.environ["XLA_RUN_SECRET"] = "ab" * 32
    from torch_xdist import settings, world
    from torch_xdist.core.torch_side import registration

    settings.reread()
    world.forget()
    registration.register()
    if spmd:
        import torch_xla.runtime as xr

        xr.use_spmd()


def _call(rank: int, size: int, function: Callable[[], Any]) -> Any:
    from torch_xdist import metrics

    metrics.clear_all()
    try:
        return function()
    except pytest.skip.Exception as skipped:
        return skipped
