"""Activation checkpoints."""

from torch_xdist.training.activation_checkpoint import (
    checkpoint,
)

__all__ = [
    "checkpoint",
]
