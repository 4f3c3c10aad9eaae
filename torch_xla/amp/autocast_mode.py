"""`autocast`, under the name of its own module."""

from torch_xdist.training.amp import autocast

__all__ = ["autocast"]
