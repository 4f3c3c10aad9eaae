"""Threads that each run one job at a time, as many as there are jobs at once; idle ones end.

A job may wait for other ranks, so no job ever waits behind another.
"""

import queue
import threading
from collections.abc import Callable

_IDLE_S = 10.0


class Workers:
    """Runs jobs, each at once on a thread of its own; a thread that is free is used again."""

    def __init__(self, name: str, *, idle_s: float = _IDLE_S) -> None:
        self._name, self._idle_s = name, idle_s
        self._jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._free = 0  # threads that wait for a job, less the jobs that wait for one
        self._undone = 0
        self._lock = threading.Lock()
        self._done = threading.Condition(self._lock)

    def run(self, job: Callable[[], None]) -> None:
        """Start the job and return; it must not raise.

        Raises:
            RuntimeError: no thread can be started; the job is not done then.
        """
        with self._lock:
            self._undone += 1
            self._free -= 1
            is_short = self._free < 0
            if is_short:
                self._free += 1
        if is_short:
            self._start(job)
        else:
            self._jobs.put(job)

    def _start(self, job: Callable[[], None]) -> None:
        thread = threading.Thread(target=self._work, args=(job,), name=self._name, daemon=True)
        try:
            thread.start()
        except BaseException:
            # The system has no room for one more (ulimit -u, pids.max): who waits must not for it.
            with self._done:
                self._undone -= 1
                self._done.notify_all()
            raise

    def wait(self, limit_s: float) -> bool:
        """Wait until all jobs are done; False where some are not after `limit_s`."""
        with self._done:
            return self._done.wait_for(lambda: not self._undone, limit_s)

    def _work(self, job: Callable[[], None] | None) -> None:
        while job is not None:
            job()
            with self._done:
                self._undone -= 1
                self._done.notify_all()
            job = self._next()

    def _next(self) -> Callable[[], None] | None:
        """The next job; None when there was none for a while."""
        with self._lock:
            self._free += 1
        try:
            return self._jobs.get(timeout=self._idle_s)
        except queue.Empty:
            pass
        with self._lock:
            if self._free > 0:
                self._free -= 1
                return None
        return self._jobs.get()  # one was given just now
