"""Optimizers that skip a step on the device, with no look at a value."""

from torch_xdist.training.syncfree import (
    SGD,
    Adam,
    AdamW,
)

__all__ = [
    "SGD",
    "Adam",
    "AdamW",
]
