"""Activation checkpoints."""

from torch_xdist.activation_checkpoint import (
    checkpoint,
)

__all__ = [
    "checkpoint",
]
