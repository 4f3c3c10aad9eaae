"""What has come for the head, in order: news from the agents, questions, requests to stop.

Whoever puts something there never waits. Lines of ranks wait only up to a limit, and are counted
beyond it: ranks that print without end must not keep the head from what it has to judge. Beats wake
nobody: thousands of hosts would do that every moment, one by one. They are taken when something
else has come, or when nothing has for as long as the head waits; what a host says stays in order.
"""

import queue
import threading
from collections import deque

from torch_xdist.system.frames import Message

_MOST_BYTES = 8 << 20

# (host, message, blob); the host is -1 where it comes from none.
Item = tuple[int, Message, bytes]


class Inbox:
    """The queue of the head."""

    def __init__(self, most_bytes: int = _MOST_BYTES) -> None:
        # Its `put` is safe in a signal handler, whatever that interrupts.
        self._queue: queue.SimpleQueue[Item] = queue.SimpleQueue()
        self._beats: deque[Item] = deque()
        self._order = threading.Lock()
        self._lock = threading.Lock()
        self._most_bytes, self._bytes = most_bytes, 0
        self.unshown = 0
        """Lines that were left out and that no message has told of yet."""

    def tell(self, message: Message) -> None:
        """Put a message of this process there; it may be in a signal handler."""
        self._queue.put((-1, message, b""))

    def put(self, host_index: int, message: Message, blob: bytes) -> None:
        """Put what an agent says there; lines of ranks where there is room."""
        item = host_index, message, blob
        if message["op"] == "beats":
            with self._order:
                self._beats.append(item)
        elif message["op"] != "log" or self._makes_room(message):
            self._release_beats()
            self._queue.put(item)

    def _release_beats(self) -> None:
        with self._order:
            while self._beats:
                self._queue.put(self._beats.popleft())

    def take(self, limit_s: float = 0.0) -> Item | None:
        """The next one; None where none comes in time."""
        item = self._next(limit_s)
        if item is None and limit_s:
            self._release_beats()
            item = self._next(0.0)
        if item is None:
            return None
        if item[1]["op"] == "log":
            with self._lock:
                self._bytes -= _size(item[1])
        return item

    def _next(self, limit_s: float) -> Item | None:
        try:
            return self._queue.get(timeout=limit_s) if limit_s else self._queue.get_nowait()
        except queue.Empty:
            return None

    def _makes_room(self, message: Message) -> bool:
        with self._lock:
            if self._bytes > self._most_bytes:
                self.unshown += len(message["lines"]) + message["unshown"]
                return False
            self._bytes += _size(message)
            message["unshown"] += self.unshown
            self.unshown = 0
            return True


def _size(log: Message) -> int:
    return sum(map(len, log["lines"])) + 100 * len(log["lines"])
