"""Processes as the tests see them from outside, by number."""

import contextlib
import os
import signal

from torch_xdist.system import process_tree


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    """Send a signal; a process that is gone is no error."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def kill_marked(mark: str) -> None:
    """SIGKILL every process with this mark ("NAME=value") in its environment."""
    for pid in process_tree.marked(mark):
        kill(pid)
