"""Eager mode, under the name of its own module."""

from torch_xdist.training.eager import (
    eager_mode,
    eager_mode_context,
    is_eager_mode,
)

__all__ = [
    "eager_mode",
    "is_eager_mode",
    "eager_mode_context",
]
