"""A folder of checkpoints by step."""

from torch_xdist.sharded_checkpoint.manager import (
    MANAGER_METADATA_FILE as _MANAGER_METADATA_FILE,
)
from torch_xdist.sharded_checkpoint.manager import (
    CheckpointManager,
)
from torch_xdist.sharded_checkpoint.manager import (
    CheckpointMetadata as _CheckpointMetadata,
)

__all__ = [
    "CheckpointManager",
    "_CheckpointMetadata",
    "_MANAGER_METADATA_FILE",
]
