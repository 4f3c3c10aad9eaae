"""Activation checkpoints."""

from torch_xdist.training.activation_checkpoint import (
    CheckpointFunction,
    CheckpointStatus,
    checkpoint,
    chkpt_status,
    get_device_states,
    set_device_states,
)

__all__ = [
    "CheckpointFunction",
    "CheckpointStatus",
    "checkpoint",
    "chkpt_status",
    "get_device_states",
    "set_device_states",
]
