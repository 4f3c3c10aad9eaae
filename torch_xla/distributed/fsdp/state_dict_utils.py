"""Whole state dicts from those of all ranks."""

from torch_xdist.ranks.fsdp.state import (
    consolidate_sharded_model_checkpoints,
    consolidate_sharded_state_dicts,
)

__all__ = [
    "consolidate_sharded_model_checkpoints",
    "consolidate_sharded_state_dicts",
]
