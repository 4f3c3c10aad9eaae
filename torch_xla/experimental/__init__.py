"""Eager mode."""

from torch_xdist.torch_xla_compat.submodules import on_demand as _on_demand
from torch_xdist.training.eager import (
    eager_mode,
    eager_mode_context,
    is_eager_mode,
)

_on_demand(__name__)

__all__ = [
    "eager_mode",
    "is_eager_mode",
    "eager_mode_context",
]
