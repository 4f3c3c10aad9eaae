"""Checkpoints of a training job: asynchronous, sharded, whole or not at all."""

from torch_xdist.checkpoint.manager import CheckpointManager, CorruptCheckpointWarning

__all__ = ["CheckpointManager", "CorruptCheckpointWarning"]
