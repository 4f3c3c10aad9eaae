"""Gradient checkpointing of a module, where torch_xla has it."""

from torch_xdist.ranks.fsdp.wrap import (
    checkpoint_module,
)

__all__ = [
    "checkpoint_module",
]
