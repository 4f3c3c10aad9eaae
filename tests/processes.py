"""Processes as the tests see them from outside, by number."""

import contextlib
import os
import signal
from collections.abc import Collection

from torch_xdist.system import process_tree


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    """Send a signal; a process that is gone is no error."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def kill_at_once(pids: Collection[int]) -> None:
    """SIGKILL processes of which none sees the end of another, as where a host loses its power."""
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in pids:
            kill(pid, number)


def kill_marked(mark: str) -> None:
    """SIGKILL every process with this mark ("NAME=value") in its environment."""
    for pid in process_tree.marked(mark):
        kill(pid)
