"""What one side of a stream has to say, numbered by its order, and kept until the other has it.

A connection that breaks takes with it whatever was on its way. Both sides count the messages that
came to them whole; a new connection begins with these counts, and each side says again what the
other one lacks, from the first byte of that message on: nothing is lost, nothing comes twice.
"""

import threading
from collections import deque

from torch_xdist.launcher.facts.errors import HostError

# Sent and not yet acknowledged. Acknowledgements come with every beat, and oftener under load.
MOST_KEPT_BYTES = 64 << 20


class Replay:
    """The messages of one direction; every method may be called from any thread.

    Args:
        keeps: whether there may be another connection, so that what was sent is kept.
    """

    def __init__(self, *, keeps: bool = False, most_bytes: int = MOST_KEPT_BYTES) -> None:
        self._keeps, self._most_bytes = keeps, most_bytes
        self._lock = threading.Lock()
        self._kept: deque[bytes] = deque()
        self._waiting: deque[bytes] = deque()
        self._kept_bytes = self._first_kept = 0
        self.pending_bytes = 0
        """Of the messages that were not taken yet."""

    def keep(self, keeps: bool) -> None:
        """From now on, whether what is taken is kept."""
        with self._lock:
            self._keeps = keeps
            self._trim()

    def add(self, data: bytes) -> None:
        """Another message, behind all others."""
        with self._lock:
            self._waiting.append(data)
            self.pending_bytes += len(data)

    def take(self) -> bytes | None:
        """The next message to be sent; None for none."""
        with self._lock:
            if not self._waiting:
                return None
            data = self._waiting.popleft()
            self.pending_bytes -= len(data)
            self._kept.append(data)
            self._kept_bytes += len(data)
            self._trim()
            return data

    def acknowledge(self, count: int) -> None:
        """The other side has the first `count` messages."""
        with self._lock:
            while self._kept and self._first_kept < count:
                self._forget_one()

    def rewind(self, count: int) -> None:
        """Send again what comes after the first `count` messages.

        Raises:
            HostError: some of that is not kept any more, or was never sent.
        """
        with self._lock:
            sent = self._first_kept + len(self._kept)
            if not self._first_kept <= count <= sent:
                raise HostError(
                    f"its connection ended, and it cannot be told again what it has missed: it has "
                    f"{count} of {sent} messages, and those from {self._first_kept} on are kept "
                    f"({self._most_bytes >> 20} MiB at most)"
                )
            while self._first_kept < count:
                self._forget_one()
            while self._kept:
                data = self._kept.pop()
                self._kept_bytes -= len(data)
                self._waiting.appendleft(data)
                self.pending_bytes += len(data)

    def _trim(self) -> None:
        while self._kept and (not self._keeps or self._kept_bytes > self._most_bytes):
            self._forget_one()

    def _forget_one(self) -> None:
        self._kept_bytes -= len(self._kept.popleft())
        self._first_kept += 1
