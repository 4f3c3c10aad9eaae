"""Checkpoints of sharded tensors."""

from torch_xdist.sharded_checkpoint.manager import (
    CheckpointManager,
)
from torch_xdist.sharded_checkpoint.optimizers import (
    prime_optimizer,
)
from torch_xdist.sharded_checkpoint.planners import (
    SPMDLoadPlanner,
    SPMDSavePlanner,
)
from torch_xdist.torch_xla_compat.submodules import on_demand as _on_demand

_on_demand(__name__)

__all__ = [
    "CheckpointManager",
    "SPMDLoadPlanner",
    "SPMDSavePlanner",
    "prime_optimizer",
]
