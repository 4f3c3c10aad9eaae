"""A queue and a thread that writes what is in it, for readers that may stop reading."""

import collections
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

_MOST_BYTES = 4 << 20
_CLOSE_S = 2.0

Item = TypeVar("Item")


class BackgroundWriter(Generic[Item]):
    """A queue and a thread that writes what is in it; who offers something never waits.

    Args:
        write: called on the thread with one item after the other; may block.
        dropped: makes the item that says how many lines were dropped.
    """

    def __init__(
        self,
        write: Callable[[Item], None],
        dropped: Callable[[int], Item],
        most_bytes: int = _MOST_BYTES,
    ) -> None:
        self._write, self._dropped_item, self._most_bytes = write, dropped, most_bytes
        self._queue: collections.deque[tuple[Item, int]] = collections.deque()
        self._queued_bytes = self._dropped = 0
        self._closing = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="xla-run-writer", daemon=True)
        self._thread.start()

    def offer(self, item: Item, size: int = 0, lines: int = 0) -> None:
        """Queue an item; one that holds lines of ranks is dropped where too much waits already."""
        with self._changed:
            if lines and self._queued_bytes > self._most_bytes:
                self._dropped += lines
                return
            self._note_dropped()
            self._queue.append((item, size))
            self._queued_bytes += size
            self._changed.notify()

    def is_idle(self) -> bool:
        """Whether nothing waits."""
        with self._changed:
            return not self._queue

    def close(self, limit_s: float = _CLOSE_S) -> bool:
        """Write what waits, at most for `limit_s`; whether all was written."""
        with self._changed:
            self._note_dropped()
            self._closing = True
            self._changed.notify()
        self._thread.join(limit_s)
        return not self._thread.is_alive()

    def _note_dropped(self) -> None:
        if self._dropped:
            self._queue.append((self._dropped_item(self._dropped), 0))
            self._dropped = 0

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._queue and not self._closing:
                    self._changed.wait()
                if not self._queue:
                    return
                item, size = self._queue.popleft()
            self._write(item)
            with self._changed:
                self._queued_bytes -= size


def dropped_text(lines: int) -> str:
    """The line that stands for those that were dropped."""
    return f"[{lines} lines not shown, they are in the logs]\n"
