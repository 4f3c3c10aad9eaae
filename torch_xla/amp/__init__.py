"""Mixed precision: `autocast` and `GradScaler`."""

from torch_xdist.torch_xla_compat.submodules import on_demand as _on_demand
from torch_xdist.training.amp import (
    GradScaler,
    autocast,
)

_on_demand(__name__)

__all__ = [
    "autocast",
    "GradScaler",
]
