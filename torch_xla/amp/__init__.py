"""Mixed precision: `autocast` and `GradScaler`."""

from torch_xdist.amp import (
    GradScaler,
    autocast,
)

__all__ = [
    "autocast",
    "GradScaler",
]
