"""Threads that feed a training loop, and their end.

Every thread is told to stop by closing the mailboxes it works on, never by force. All of them are
joined before the interpreter finalizes: a thread that still held a device buffer then would be
stopped inside C++ by its next need of the GIL, which ends the process with "terminate called".
"""

import os
import threading
import time
import weakref
from collections.abc import Callable

EXIT_WAIT_S = 10.0

_live: "weakref.WeakSet[FeedThread]" = weakref.WeakSet()


class FeedThread(threading.Thread):
    """A daemon thread with the function that makes it end."""

    def __init__(self, name: str, target: Callable[[], None], stop: Callable[[], None]) -> None:
        super().__init__(name=name, target=target, daemon=True)
        self.stop = stop

    def start(self) -> None:
        """Start it, and remember it until it ended."""
        _live.add(self)
        super().start()


def live() -> list[FeedThread]:
    """The threads that run now."""
    return [thread for thread in list(_live) if thread.is_alive()]


def join_all(timeout_s: float = EXIT_WAIT_S) -> None:
    """Stop every thread and wait until each ended, or the time is over.

    A dataset that blocks for ever cannot be interrupted; its daemon thread is then left behind.
    """
    threads = live()
    for thread in threads:
        thread.stop()
    deadline_s = time.monotonic() + timeout_s
    for thread in threads:
        thread.join(max(0.0, deadline_s - time.monotonic()))


# Runs when the main thread is through, before atexit and before modules are torn down; it is what
# concurrent.futures uses for the same end.
threading._register_atexit(join_all)  # type: ignore[attr-defined]
# A forked DataLoader worker inherits the set but none of the threads.
os.register_at_fork(after_in_child=_live.clear)
