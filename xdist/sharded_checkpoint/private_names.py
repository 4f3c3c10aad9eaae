"""The private calls of torch_xla's that have to do with preemption."""

from typing import Any

from torch_xdist.errors import CheckpointError
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
    """Whether any process was told that its machine is taken away.

    Raises CheckpointError where nobody took note of SIGTERM.
    """
    if not preemption.is_active():
        raise CheckpointError(
            "_sync_point_reached: nobody takes note of SIGTERM here, so that no preemption is seen;"
            " call _activate_preemption_sync_manager before, or make a CheckpointManager with"
            " chkpt_on_preemption=True"
        )
    return preemption.reached()
