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

__all__ = [
    "CheckpointManager",
    "SPMDLoadPlanner",
    "SPMDSavePlanner",
    "prime_optimizer",
]
