"""`xla-run logs -f JOB | head`: who follows a job ends when nobody reads what it prints any more.

A write would tell, but a job may print nothing for hours: the kernel says so of the pipe at once.
"""

import os
import select
import signal
import sys
import threading
from collections.abc import Callable

# What a shell says of a program that has ended so.
NO_READER = 128 + signal.SIGPIPE
_LEAVE_S = 2.0


def leave_with(leave: Callable[[], object] | None = None) -> None:
    """From now on, end this process with the reader of its stdout.

    Args:
        leave: called first, on a thread; the process has 2 s to end by itself then. None: it is
            ended at once.
    """
    try:
        fd = sys.stdout.fileno()
    except (AttributeError, OSError, ValueError):  # it was closed, or is no file
        return
    threading.Thread(target=_watch, args=(fd, leave), daemon=True, name="reader").start()


def _watch(fd: int, leave: Callable[[], object] | None) -> None:
    output = select.poll()
    # Errors alone are asked for. A file has none, and a stdout that was closed is no reader gone.
    output.register(fd, 0)
    for _, event in output.poll():
        if not event & (select.POLLERR | select.POLLHUP):
            return
    if leave is not None:
        leave()
        threading.Event().wait(_LEAVE_S)
    os._exit(NO_READER)
