"""What has come for the head, in order: news from the agents, questions, requests to stop.

Whoever puts something there never waits. Lines of ranks wait only up to a limit, and are counted
beyond it: ranks that print without end must not keep the head from what it has to judge.
"""

import queue
import threading

from torch_xdist.system.frames import Message

_MOST_BYTES = 8 << 20

# (host, message, blob); the host is -1 where it comes from none.
Item = tuple[int, Message, bytes]


class Inbox:
    """The queue of the head."""

    def __init__(self, most_bytes: int = _MOST_BYTES) -> None:
        # Its `put` is safe in a signal handler, whatever that interrupts.
        self._queue: queue.SimpleQueue[Item] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._most_bytes, self._bytes = most_bytes, 0
        self.unshown = 0
        """Lines that were left out and that no message has told of yet."""

    def tell(self, message: Message) -> None:
        """Put a message of this process there; it may be in a signal handler."""
        self._queue.put((-1, message, b""))

    def put(self, host_index: int, message: Message, blob: bytes) -> None:
        """Put what an agent says there; lines of ranks where there is room."""
        if message["op"] != "log" or self._makes_room(message):
            self._queue.put((host_index, message, blob))

    def take(self, limit_s: float = 0.0) -> Item | None:
        """The next one; None where none comes in time."""
        try:
            item = self._queue.get(timeout=limit_s) if limit_s else self._queue.get_nowait()
        except queue.Empty:
            return None
        if item[1]["op"] == "log":
            with self._lock:
                self._bytes -= _size(item[1])
        return item

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
