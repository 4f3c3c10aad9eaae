"""Mixed precision: `autocast` and `GradScaler`."""

from torch_xdist.training.amp import (
    GradScaler,
    autocast,
)

__all__ = [
    "autocast",
    "GradScaler",
]
