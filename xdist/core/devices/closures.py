"""Closures that run after the next cut, with the values the step computed.

Step closures belong to the thread that trains; synchronous ones run on it, asynchronous ones on
one thread of their own, in order, as the rank and on the device of the thread that trains. `sync`
calls `run_step_closures` after the cut.
"""

import threading
from collections.abc import Callable, Sequence
from queue import Queue
from typing import Any

from torch_xdist import settings
from torch_xdist.core.devices.thread_identity import identity_of_thread

Closure = Callable[[], None]


class ClosureHandler:
    """Runs closures at once, on the calling thread."""

    def run(self, closure: Closure) -> None:
        """Run one closure."""
        closure()

    def run_all(self, closures: list[Closure]) -> None:
        """Run the closures in order; the first exception ends the round."""
        for closure in closures:
            self.run(closure)


class AsyncClosureHandler(ClosureHandler):
    """Runs closures one after another on a thread of its own, each as the rank that gave it.

    Args:
        max_queue_size: how many closures may wait; `run` blocks beyond it. Default
            XLA_MAX_ASYNC_QUEUE (100).

    An exception ends the thread's work; the next `run` raises RuntimeError from it.
    """

    def __init__(self, max_queue_size: int | None = None) -> None:
        if max_queue_size is None:
            max_queue_size = settings.current().async_closures
        self._queue: Queue[Closure] = Queue(max_queue_size)
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._exception: BaseException | None = None
        self._pending = 0

    def run(self, closure: Closure) -> None:
        """Hand over one closure; blocks while the queue is full."""
        self._raise_previous()
        with self._lock:
            self._pending += 1
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._work, name="step closures", daemon=True
                )
                self._thread.start()
        assume_identity = identity_of_thread()

        def as_the_giver() -> None:
            assume_identity()
            closure()

        self._queue.put(as_the_giver)

    def start_event_loop(self) -> None:
        """Accepted for torch_xla's sake: `run` starts the thread when there is work."""

    def wait(self) -> None:
        """Block until every closure handed over has run. Raises what one of them raised."""
        self._queue.join()
        self._raise_previous()

    def _raise_previous(self) -> None:
        if self._exception is not None:
            raise RuntimeError(
                "Cannot run asynchronous closure due to previously raised exception"
            ) from self._exception

    def _work(self) -> None:
        while True:
            closure = self._queue.get()
            try:
                if self._exception is None:
                    closure()
            except BaseException as error:
                self._exception = error
            finally:
                self._queue.task_done()
            with self._lock:
                self._pending -= 1
                if self._pending == 0:
                    # No thread waits for work that may never come; `run` starts the next one.
                    self._thread = None
                    return


class StepClosures:
    """The closures one thread of training waits to run."""

    def __init__(self) -> None:
        self.now: list[Closure] = []
        self.later: list[Closure] = []
        self.handler = ClosureHandler()
        self.async_handler = AsyncClosureHandler()

    def run(self) -> None:
        """Hand the asynchronous closures over, then run the others. Both lists end empty."""
        now, self.now = self.now, []
        later, self.later = self.later, []
        self.async_handler.run_all(later)
        self.handler.run_all(now)


class _PerThread(threading.local):
    def __init__(self) -> None:
        self.closures = StepClosures()


# A thread trains one device (one process one device, or one thread each), so this is per device.
_thread = _PerThread()


def add_step_closure(
    closure: Callable[..., Any], args: Sequence[Any] = (), run_async: bool = False
) -> None:
    """Call `closure(*args)` after the next sync, when the tensors in `args` have values.

    With `run_async` it runs on another thread, after those handed over before it.
    """
    closures = _thread.closures
    waiting = closures.later if run_async else closures.now
    waiting.append(lambda: closure(*args))


def run_step_closures() -> None:
    """Run what the steps of this thread left to run. Called by sync, after the cut."""
    closures = _thread.closures
    if closures.now or closures.later:
        closures.run()


def wait_step_closures() -> None:
    """Block until the asynchronous closures of this thread have run."""
    _thread.closures.async_handler.wait()


def waiting_closures() -> int:
    """How many closures of this thread wait for the next sync."""
    return len(_thread.closures.now) + len(_thread.closures.later)
