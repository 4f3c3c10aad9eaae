"""The private calls of torch_xla's that have to do with preemption."""

from typing import Any

from torch_xdist.sharded_checkpoint import preemption


def _ensure_xla_coordinator_initialized(*args: Any, **kwargs: Any) -> None:
    """Nothing: processes agree through their process group."""


def _activate_preemption_sync_manager() -> None:
    """Take note of SIGTERM."""
    preemption.activate()


def _deactivate_preemption_sync_manager() -> None:
    """Give SIGTERM back."""
    preemption.deactivate()


def _sync_point_reached(step: int) -> bool:
    """Whether any process was told that its machine is taken away."""
    return preemption.reached()
