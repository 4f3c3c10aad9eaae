"""A compilation that takes long says so while it goes on, and how long it took the last time.

On a terminal it is one line, which is written anew each second and is gone at the end, unless it
took long; elsewhere a line every now and then. Under `xla-run` and `spawn` the launcher says it,
for all ranks at once.
"""

import contextlib
import sys
import threading
import time
import warnings
from typing import Any

from torch_xdist import world
from torch_xdist.core.kept import compile_times
from torch_xdist.core.trace.user_frames import user_line
from torch_xdist.progress import PROGRESS

# The first word; elsewhere than on a terminal another one after twice the time, again and again.
_FIRST_S = 10.0
# On a terminal: the first word, and how often it is written anew.
_FIRST_LIVE_S, _EACH_S = 2.0, 1.0
_ANEW = "\r\x1b[K"


def told_if_long(rows: int) -> contextlib.AbstractContextManager[Any]:
    """Around the compilation of a program of so many operators."""
    here = world.current()
    if here.control or here.local_rank:
        return contextlib.nullcontext()
    return _Notice(user_line(), rows, is_live=_is_terminal())


def _is_terminal() -> bool:
    return sys.stderr.isatty()


class _Notice:
    """Says on a thread of its own, inside a block, how long it goes on."""

    def __init__(self, where: str, rows: int, *, is_live: bool) -> None:
        self._where = where
        self._rows = rows
        self._is_live = is_live
        self._began_s = time.monotonic()
        self._is_over = threading.Event()
        self._lock = threading.Lock()
        self._has_spoken = False

    def __enter__(self) -> None:
        self._thread = threading.Thread(target=self._speak, daemon=True)
        self._thread.start()

    def _speak(self) -> None:
        wait_s = _FIRST_LIVE_S if self._is_live else _FIRST_S
        self._is_over.wait(wait_s)
        with self._lock:
            if self._is_over.is_set():
                return
            self._has_spoken = True
        last_s = compile_times.last_s(self._where, self._rows)
        about = "" if last_s is None else f", about {last_s:.0f} s the last time"
        what = f"compiling step {PROGRESS.step + 1} ({self._rows:,} operators) ..."
        wait_s = _EACH_S if self._is_live else _FIRST_S
        while True:
            self._tell(f"{what} {self._so_far_s():.0f} s{about}", _ANEW, "")
            if self._is_over.wait(wait_s):
                return
            wait_s *= 1 if self._is_live else 2

    def __exit__(self, *failure: object) -> None:
        with self._lock:
            self._is_over.set()
        took_s = self._so_far_s()
        if failure[0] is None:
            compile_times.keep(self._where, self._rows, took_s)
        if not self._has_spoken:
            return
        self._thread.join()
        if took_s >= _FIRST_S:
            text = f"compiled a program of {self._rows:,} operators in {took_s:.0f} s"
            self._tell(text if failure[0] is None else f"{text}, without success", _ANEW, "\n")
        elif self._is_live:
            print(_ANEW, end="", file=sys.stderr, flush=True)

    def _so_far_s(self) -> float:
        return time.monotonic() - self._began_s

    def _tell(self, what: str, before: str, after: str) -> None:
        if not self._is_live:
            before, after = "", "\n"
        text = f"{before}torch_xdist: {self._where}: {what}"
        print(text, end=after, file=sys.stderr, flush=True)


_first_filter: object = None


def without_warning_of_donations() -> None:
    """Let JAX not warn of buffers given away in vain: scripts and pytest set filters anew."""
    global _first_filter
    if not warnings.filters or warnings.filters[0] is not _first_filter:
        warnings.filterwarnings("ignore", "Some donated buffers were not usable")
        _first_filter = warnings.filters[0]
