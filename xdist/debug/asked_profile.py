"""A profile of this process that somebody else has asked for: `xla-run profile`.

The program may be anywhere, so nothing it does may fail because of it: where the program begins a
profile of its own, this one ends first. It is kept in memory; no file of it is on this host.
"""

import threading
import time
from typing import Any, NamedTuple

import jax

from torch_xdist.debug.profiler_sessions import before_other_sessions, profiler_session


class Taken(NamedTuple):
    """A serialized XSpace, after how many seconds it was ended, and whether by the program."""

    data: bytes
    seconds: float
    is_cut: bool


def runs() -> bool:
    """Whether a profile of this process is being taken, by whomever."""
    return jax.profiler.TraceAnnotation.is_enabled()


def take(seconds: float, ended: threading.Event, *, python_calls: bool) -> Taken:
    """Profile this process; on a thread, which waits meanwhile.

    Args:
        ended: ends it sooner.
        python_calls: every call of a Python function is in it, which slows Python down.

    Raises RuntimeError where XLA's profiler fails.
    """
    profile = _Profile(ended)
    # The program may begin its own at any moment from the beginning of this one on.
    with before_other_sessions(profile.give_way):
        profile.begin(python_calls=python_calls)
        ended.wait(seconds)
        profile.end()
    return profile.taken()


class _Profile:
    """One session; whoever comes first ends it."""

    def __init__(self, ended: threading.Event) -> None:
        self._ended = ended
        self._session: Any = None
        # Its own beginning is announced as well, to the same thread.
        self._lock = threading.RLock()
        self._began_s = time.monotonic()
        self._taken: Taken | None = None
        self._why: Exception | None = None

    def begin(self, *, python_calls: bool) -> None:
        with self._lock:
            self._session = profiler_session(python_calls=python_calls)
            self._began_s = time.monotonic()

    def give_way(self) -> None:
        """A session is about to begin: the program's, on its thread, or this one."""
        with self._lock:
            if self._session is not None:
                self.end(is_cut=True)
                self._ended.set()

    def end(self, *, is_cut: bool = False) -> None:
        with self._lock:
            if self._taken is not None or self._why is not None:
                return
            lasted_s = time.monotonic() - self._began_s
            try:
                self._taken = Taken(bytes(self._session.stop()), lasted_s, is_cut)
            except Exception as error:
                # It is told where it was asked for; the program is none the worse for it.
                self._why = error

    def taken(self) -> Taken:
        if self._taken is None:
            raise RuntimeError(f"profile: XLA's profiler failed: {self._why}") from self._why
        return self._taken
