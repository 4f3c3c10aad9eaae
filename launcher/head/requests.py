"""What is asked of a running job: to stop, by signals and other processes; how it stands.

Signal handlers and the threads of gRPC only leave the request here and wake the loop of the head,
through calls that may interrupt one another.
"""

import contextlib
import queue
from collections.abc import Callable

from torch_xdist.system.frames import Message

_ANSWER_LIMIT_S = 10.0


class Requests:
    """The requests to stop a job, in the order in which they came, over all its attempts."""

    def __init__(self) -> None:
        # Appending and SimpleQueue.put are safe in a signal handler, whatever it interrupts.
        self._asked: list[tuple[int, bool, str]] = []
        self._taken = 0
        self._bell: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._wake: Callable[[], None] = lambda: None

    def ask(self, number: int, *, now: bool = False, source: str = "") -> None:
        """Stop as if by this signal; a second time, or `now`, without any grace.

        Args:
            source: who was told to stop. Where a scheduler tells all nodes of a job at once, each
                has been told once.
        """
        self._asked.append((number, now, source))
        self._bell.put(None)
        self._wake()

    def attach(self, wake: Callable[[], None]) -> None:
        """Let this be called after each request, and now; it must be safe in a signal handler."""
        self._wake = wake
        wake()

    def new(self) -> list[tuple[int, bool]]:
        """(signal, now) of the requests since the last call; by one thread."""
        found = list[tuple[int, bool]]()
        while self._taken < len(self._asked):
            number, now, source = self._asked[self._taken]
            is_again = any(source == earlier for *_, earlier in self._asked[: self._taken])
            if not self._taken or is_again or now:
                found.append((number, now or is_again))
            self._taken += 1
        return found

    def wait(self, limit_s: float = 0.0) -> bool:
        """Wait for a request; whether there was one, now or before."""
        if not self._asked:
            with contextlib.suppress(queue.Empty):
                self._bell.get(timeout=limit_s)
        return bool(self._asked)


class Question:
    """One question to the head, from a thread that waits for its answer."""

    def __init__(self, message: Message) -> None:
        self.message = message
        self._answer: queue.SimpleQueue[Message] = queue.SimpleQueue()

    def answer(self, message: Message) -> None:
        """On the head's thread."""
        self._answer.put(message)

    def wait(self) -> Message:
        """The answer; a message with "silent" where the head has none in time."""
        try:
            return self._answer.get(timeout=_ANSWER_LIMIT_S)
        except queue.Empty:
            return {"silent": True}
