"""A compilation that takes long says so while it goes on, and when it has ended.

Under `xla-run` and `spawn` the launcher says it, for all ranks at once.
"""

import contextlib
import sys
import threading
import time
from typing import Any

from torch_xdist import world
from torch_xdist.core.trace.user_frames import user_line

# The first word, and then after twice the time, again and again.
_FIRST_S = 10.0


def told_if_long(rows: int) -> contextlib.AbstractContextManager[Any]:
    """Around the compilation of a program of so many operators."""
    here = world.current()
    if here.control or here.local_rank:
        return contextlib.nullcontext()
    return _Notice(f"torch_xdist: {user_line()}: compiling a program of {rows} operators")


class _Notice:
    """Says a text every now and then, on a thread of its own, inside a block."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._began_s = time.monotonic()
        self._lock = threading.Lock()
        self._next_s = _FIRST_S
        self._is_over = self._has_spoken = False

    def __enter__(self) -> None:
        self._timer = self._wait(_FIRST_S)

    def _wait(self, seconds: float) -> threading.Timer:
        timer = threading.Timer(seconds, self._speak)
        timer.daemon = True
        timer.start()
        return timer

    def _speak(self) -> None:
        with self._lock:
            if self._is_over:
                return
            self._has_spoken = True
            self._tell(f"{time.monotonic() - self._began_s:.0f} s so far")
            self._timer = self._wait(self._next_s)
            self._next_s *= 2

    def __exit__(self, *failure: object) -> None:
        with self._lock:
            self._is_over = True
            self._timer.cancel()
        if self._has_spoken:
            self._tell(f"over after {time.monotonic() - self._began_s:.0f} s")

    def _tell(self, what: str) -> None:
        print(f"{self._text}, {what}", file=sys.stderr, flush=True)
