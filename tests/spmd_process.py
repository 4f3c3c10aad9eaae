"""A process in SPMD mode with four CPU devices, for tests: one per file, which run inside it.

four = SpmdProcess(4)

@four
def test_...(): ...
"""

import functools
import os
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
    """

    def __init__(self, devices: int, *, spmd: bool = True) -> None:
        self.devices = devices
        self.spmd = spmd
        self._pool: RankPool | None = None

    def __call__(self, test: Callable[..., None]) -> Callable[..., None]:
        """The test, which runs in the process; fixtures and parameters go there by value."""

        @functools.wraps(test)
        def here(*args: Any, **kwargs: Any) -> None:
            self.run(lambda: test(*args, **kwargs), test.__module__)

        return here

    def run(self, function: Callable[[], Any], module: str) -> Any:
        """What a function of a test module returns there; its `pytest.skip` skips here."""
        if self._pool is None:
            self._pool = RankPool(1, _PRELOAD)
            self._pool.run(1, _become, self.devices, self.spmd, join=False)
        cloudpickle.register_pickle_by_value(sys.modules[module])
        try:
            (result,) = self._pool.run(1, _call, function, join=False)
        finally:
            cloudpickle.unregister_pickle_by_value(sys.modules[module])
        if isinstance(result, pytest.skip.Exception):
            raise result
        return result


def _become(rank: int, size: int, devices: int, spmd: bool) -> None:
    os.environ.update(CPU_NUM_DEVICES=str(devices), PJRT_DEVICE="CPU")
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
