"""A machine is about to be taken away (SIGTERM): the processes agree on a step to save at."""

import signal
import threading
from typing import Any

import torch
import torch.distributed as dist

_told = threading.Event()
_previous: Any = None
_is_active = False


def activate() -> None:
    """Take note of SIGTERM from now on, and call the handler there was too, if it was a script's.

    Call it in the main thread: Python sets handlers of signals there alone.
    """
    global _previous, _is_active
    if _is_active:
        return
    _told.clear()
    _previous = signal.signal(signal.SIGTERM, _note)
    _is_active = True


def deactivate() -> None:
    """Give SIGTERM back."""
    global _is_active
    if _is_active:
        signal.signal(signal.SIGTERM, _previous or signal.SIG_DFL)
        _is_active = False
        _told.clear()


def is_active() -> bool:
    """Whether SIGTERM is taken note of."""
    return _is_active


def _note(number: int, frame: Any) -> None:
    _told.set()
    if callable(_previous):
        _previous(number, frame)


def reached(group: Any = None) -> bool:
    """Whether any process of the group was told; all of them must ask at the same step."""
    if not (dist.is_initialized() and dist.get_world_size(group) > 1):
        return _told.is_set()
    flag = torch.tensor([int(_told.is_set())])
    dist.all_reduce(flag, dist.ReduceOp.MAX, group=group)
    return bool(flag.item())
