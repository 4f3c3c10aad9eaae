"""Two queues with an end: one in order, one by key. `get` answers None once all was taken."""

import threading
from collections import deque
from typing import Any


class QueueBase:
    """What both queues have: a bound, and an end of the whole or of its writing."""

    def __init__(self, maxsize: int = 1024) -> None:
        self._maxsize = maxsize
        self._closed = False
        self._write_closed = False
        self._changed = threading.Condition()

    def max_size(self) -> int:
        """How many items may wait."""
        return self._maxsize

    def close(self) -> None:
        """End the queue at once; waiting items are dropped."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def close_write(self) -> None:
        """Say that no item follows; waiting items can still be taken."""
        with self._changed:
            self._write_closed = True
            self._changed.notify_all()


class Queue(QueueBase):
    """A bounded queue in order.

    Args:
        maxsize: how many items may wait; `put` blocks beyond it.
    """

    def __init__(self, maxsize: int = 1024) -> None:
        super().__init__(maxsize)
        self._items: deque[Any] = deque()

    def put(self, item: Any) -> None:
        """Append an item, waiting while the queue is full; dropped once the queue is closed."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._items) < self._maxsize or self._closed)
            if not self._closed:
                self._items.append(item)
                self._changed.notify_all()

    def get(self) -> Any:
        """The next item, waiting for it; None when the queue is closed or written out."""
        with self._changed:
            self._changed.wait_for(lambda: self._items or self._closed or self._write_closed)
            if self._closed or not self._items:
                return None
            item = self._items.popleft()
            self._changed.notify_all()
            return item


class PerDeviceQueue:
    """The two queues in front of one device: batches on the host, and batches on the device.

    Args:
        device: whose they are.
        loader_prefetch_size, device_prefetch_size: how many batches may wait in each.
    """

    def __init__(self, device: Any, loader_prefetch_size: int, device_prefetch_size: int) -> None:
        self.device = device
        self.cpu_loader_queue = Queue(loader_prefetch_size)
        self.queue = Queue(device_prefetch_size)


class KeydQueue(QueueBase):
    """A bounded queue whose items are taken by key, in whatever order they came.

    Args:
        maxsize: how many items may wait. The item somebody waits for is always let in, so a
            full queue cannot block its reader for ever.
    """

    def __init__(self, maxsize: int = 1024) -> None:
        super().__init__(maxsize)
        self._items: dict[Any, Any] = {}
        self._wanted: set[Any] = set()

    def put(self, key: Any, item: Any) -> None:
        """Enter an item under its key, waiting while the queue is full and nobody wants it."""
        with self._changed:
            self._changed.wait_for(
                lambda: len(self._items) < self._maxsize or key in self._wanted or self._closed
            )
            if not self._closed:
                self._items[key] = item
                self._changed.notify_all()

    def get(self, key: Any) -> Any:
        """The item of this key, waiting for it; None when the queue is closed or written out."""
        with self._changed:
            self._wanted.add(key)
            self._changed.notify_all()
            self._changed.wait_for(lambda: key in self._items or self._closed or self._write_closed)
            self._wanted.discard(key)
            if self._closed:
                return None
            item = self._items.pop(key, None)
            self._changed.notify_all()
            return item
