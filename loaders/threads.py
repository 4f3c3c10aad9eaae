"""Threads that feed a training loop: as whom they work, and their end.

A thread works as the rank, and on the device, of the thread that made it, so that a dataset that
asks for its rank gets the one it is loaded for, also where each thread of a process is a rank.

Every thread is told to stop by closing the queues it works on, never by force. All of them are
joined before the interpreter finalizes: a thread that still held a device buffer then would be
stopped inside C++ by its next need of the GIL, which ends the process with "terminate called".
"""

import atexit
import os
import threading
import time
import weakref
from collections.abc import Callable

from torch_xdist.core.devices import steps
from torch_xdist.core.devices.thread_identity import identity_of_thread
from torch_xdist.core.run import loop_cuts

EXIT_WAIT_S = 10.0

_live: "weakref.WeakSet[FeedThread]" = weakref.WeakSet()


class FeedThread(threading.Thread):
    """A daemon thread with the function that makes it end."""

    def __init__(self, name: str, target: Callable[[], None], stop: Callable[[], None]) -> None:
        super().__init__(name=name, target=target, daemon=True)
        self.stop = stop
        self._assume_identity = identity_of_thread()

    def start(self) -> None:
        """Start it, and remember it until it ended."""
        _live.add(self)
        super().start()

    def run(self) -> None:
        """Work as the rank, and on the device, of the thread that made this one."""
        self._assume_identity()
        # Its batches are rounds of the thread that trains.
        with loop_cuts.held():
            super().run()


def complete_own_work() -> None:
    """Run what a dataset or a collate_fn recorded on this thread, before its batch is handed over.

    The one place for it. A thread that trains gets values then, and not work that would become part
    of its step: programs stay the same from step to step, however far the loader is ahead.
    """
    steps.run_own("loader")


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


# Daemon threads still run then. Those that were registered sooner (of torch's data workers, of
# multiprocessing, of jax) come later, so what the threads work with is still there.
atexit.register(join_all)
# A forked DataLoader worker inherits the set but none of the threads.
os.register_at_fork(after_in_child=_live.clear)
