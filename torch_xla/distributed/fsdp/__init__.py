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
from torch_xdist.torch_xla_compat.submodules import on_demand as _on_demand

_on_demand(__name__)

__all__ = [
    "FSDP",
    "XlaFullyShardedDataParallel",
    "checkpoint_module",
    "consolidate_sharded_model_checkpoints",
    "consolidate_sharded_state_dicts",
]
