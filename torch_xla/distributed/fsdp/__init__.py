"""Fully sharded data parallel: each rank holds 1/n of the parameters, gradients and their state."""

from torch_xdist.ranks.fsdp.module import XlaFullyShardedDataParallel
from torch_xdist.ranks.fsdp.module import XlaFullyShardedDataParallel as FSDP
from torch_xdist.ranks.fsdp.state import (
    consolidate_sharded_model_checkpoints,
    consolidate_sharded_state_dicts,
)
from torch_xdist.ranks.fsdp.wrap import (
    checkpoint_module,
)

__all__ = [
    "FSDP",
    "XlaFullyShardedDataParallel",
    "checkpoint_module",
    "consolidate_sharded_model_checkpoints",
    "consolidate_sharded_state_dicts",
]
