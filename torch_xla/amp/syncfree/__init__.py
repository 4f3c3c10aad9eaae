"""Optimizers that skip a step on the device, with no look at a value."""

from torch_xdist.torch_xla_compat.submodules import on_demand as _on_demand
from torch_xdist.training.syncfree import (
    SGD,
    Adam,
    AdamW,
)

_on_demand(__name__)

__all__ = [
    "SGD",
    "Adam",
    "AdamW",
]
