"""Queues with an end."""

from torch_xdist.keyd_queue import (
    KeydQueue,
    Queue,
    QueueBase,
)

__all__ = [
    "KeydQueue",
    "Queue",
    "QueueBase",
]
