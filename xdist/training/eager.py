"""Eager mode: every operator runs at once, as a program of its own. For debugging, not speed."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch_xdist import settings
from torch_xdist.core.devices.tensor import XlaTensor
from torch_xdist.core.record import jax_ops
from torch_xdist.core.record.dispatch import dispatch
from torch_xdist.core.run.cuts import EAGER
from torch_xdist.core.run.device_trace import HERE


class _Here(threading.local):
    """How many blocks this thread is in where operators wait for the block's end."""

    deferred = 0


_here = _Here()


def _at_once(
    func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
) -> Any:
    result = dispatch(func, types, args, kwargs)
    _run_now()
    return result


def _run_now() -> None:
    if HERE.symbolic is None and not _here.deferred:
        for trace in HERE.by_device.values():
            if trace.tape.entries:
                trace.cut(EAGER)


def eager_mode(enable: bool) -> None:
    """Switch eager mode on or off, for every thread. Off, nothing is paid for it."""
    XlaTensor.__torch_dispatch__ = staticmethod(_at_once if enable else dispatch)  # type: ignore
    jax_ops.AFTER_ROW[:] = [_run_now] if enable else []


def defer() -> None:
    """From now on eager mode does not count in this thread, until `undefer` was called as often."""
    _here.deferred += 1


def undefer() -> None:
    """The end of what `defer` began."""
    _here.deferred -= 1


def follow_environment() -> None:
    """Switch eager mode on where XLA_USE_EAGER_DEBUG_MODE asks for it."""
    if settings.asks_for_eager():
        eager_mode(True)


def is_eager_mode() -> bool:
    """True while every operator runs at once."""
    return XlaTensor.__torch_dispatch__ is _at_once


@contextmanager
def eager_mode_context(enable: bool) -> Iterator[None]:
    """Eager mode on or off inside the block."""
    before = is_eager_mode()
    eager_mode(enable)
    try:
        yield
    finally:
        eager_mode(before)
