"""Closures that run after a step."""

from torch_xdist.core.devices.closures import (
    AsyncClosureHandler,
    ClosureHandler,
)

__all__ = [
    "ClosureHandler",
    "AsyncClosureHandler",
]
