"""A bounded queue between two stages of a feed: numbered items go in from several threads and come
out in order of their numbers. Closing it wakes everybody and drops what is left."""

import threading
from collections import deque
from typing import Any


class Closed(Exception):
    """The queue was closed: nobody reads or writes it any more."""


class OrderedQueue:
    """At most `size` items wait; `put` takes number k only after k - 1."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._items: deque[tuple[int, Any]] = deque()
        self._next = 0
        self._closed = False
        self._changed = threading.Condition()

    def put(self, number: int, item: Any) -> None:
        """Append item `number`, waiting for its turn and for room. Raises Closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._has_room(number))
            if self._closed:
                raise Closed
            self._items.append((number, item))
            self._next += 1
            self._changed.notify_all()

    def _has_room(self, number: int) -> bool:
        return number == self._next and len(self._items) < self._size

    def get(self) -> tuple[int, Any]:
        """(number, item), waiting for it. Raises Closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._items)
            if self._closed:
                raise Closed
            numbered = self._items.popleft()
            self._changed.notify_all()
            return numbered

    def close(self) -> None:
        """Drop the items and wake every waiting thread with Closed."""
        with self._changed:
            self._closed = True
            self._items.clear()
            self._changed.notify_all()
