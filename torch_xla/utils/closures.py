"""Closures that run after a step."""

from torch_xdist.core.run.closures import (
    AsyncClosureHandler,
    ClosureHandler,
)

__all__ = [
    "ClosureHandler",
    "AsyncClosureHandler",
]
