"""What one side of a stream has to say, numbered by its order, and kept until the other has it.

A connection that breaks takes with it whatever was on its way. Both sides count the messages that
came to them whole; a new connection begins with these counts, and each side says again what the
other one lacks, from the first byte of that message on: nothing is lost, nothing comes twice.

A message is some byte strings, which are sent one after the other, and never joined: a pickled call
of a gigabyte that goes to a thousand hosts is in memory once.
"""

import threading
from collections import deque
from collections.abc import Iterator

from torch_xdist.launcher.facts.errors import HostError

# Sent and not yet acknowledged. Acknowledgements come with every beat, and oftener under load.
MOST_KEPT_BYTES = 64 << 20
_PIECE_BYTES = 1 << 20

Parts = tuple[bytes, ...]


class Replay:
    """The messages of one direction; every method may be called from any thread.

    Args:
        keeps: whether there may be another connection, so that what was sent is kept.
    """

    def __init__(self, *, keeps: bool = False, most_bytes: int = MOST_KEPT_BYTES) -> None:
        self._keeps, self._most_bytes = keeps, most_bytes
        self._lock = threading.Lock()
        self._kept: deque[Parts] = deque()
        self._waiting: deque[Parts] = deque()
        self._begun: Iterator[memoryview] = iter(())
        self._is_amid, self._left_bytes = False, 0
        self._kept_bytes = self._first_kept = 0
        self.pending_bytes = 0
        """Of the messages that were not taken yet, or in part."""

    @property
    def is_amid(self) -> bool:
        """Whether a message has been taken in part: what is no part of it must not go now."""
        return self._is_amid

    def keep(self, keeps: bool) -> None:
        """From now on, whether what is taken is kept."""
        with self._lock:
            self._keeps = keeps
            self._trim()

    def add(self, *parts: bytes) -> None:
        """Another message, behind all others."""
        with self._lock:
            self._waiting.append(parts)
            self.pending_bytes += _size(parts)

    def take(self) -> memoryview | None:
        """What is to be sent next, a message or a piece of one; None for nothing."""
        with self._lock:
            if not self._waiting:
                return None
            if not self._is_amid:
                self._begun, self._is_amid = _pieces(self._waiting[0]), True
                self._left_bytes = _size(self._waiting[0])
            data = next(self._begun)
            self.pending_bytes -= len(data)
            self._left_bytes -= len(data)
            if not self._left_bytes:
                self._is_amid = False
                self._keep(self._waiting.popleft())
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
            if self._is_amid:
                self._is_amid = False
                self.pending_bytes += _size(self._waiting[0]) - self._left_bytes
            while self._kept:
                parts = self._kept.pop()
                self._kept_bytes -= _size(parts)
                self._waiting.appendleft(parts)
                self.pending_bytes += _size(parts)

    def _keep(self, parts: Parts) -> None:
        self._kept.append(parts)
        self._kept_bytes += _size(parts)
        self._trim()

    def _trim(self) -> None:
        while self._kept and (not self._keeps or self._kept_bytes > self._most_bytes):
            self._forget_one()

    def _forget_one(self) -> None:
        self._kept_bytes -= _size(self._kept.popleft())
        self._first_kept += 1


def _size(parts: Parts) -> int:
    return sum(map(len, parts))


def _pieces(parts: Parts) -> Iterator[memoryview]:
    """What goes at once of a message: a part, or a piece of a large one."""
    for part in parts:
        for start in range(0, len(part), _PIECE_BYTES):
            yield memoryview(part)[start : start + _PIECE_BYTES]
