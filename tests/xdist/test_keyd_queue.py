"""Queues with an end."""

import threading

import torch_xla.utils.keyd_queue as names
from torch_xdist.keyd_queue import KeydQueue, PerDeviceQueue, Queue


def test_a_queue_gives_its_items_in_order_and_then_none():
    queue = Queue(maxsize=4)
    for item in (1, 2):
        queue.put(item)
    queue.close_write()
    assert [queue.get(), queue.get(), queue.get()] == [1, 2, None]
    assert queue.max_size() == 4


def test_closing_drops_what_waits_and_frees_who_waits():
    queue = Queue(maxsize=1)
    queue.put(1)
    blocked = threading.Thread(target=queue.put, args=(2,))
    blocked.start()
    queue.close()
    blocked.join(10)
    assert not blocked.is_alive() and queue.get() is None


def test_items_are_taken_by_key():
    queue = KeydQueue()
    queue.put("b", 2)
    queue.put("a", 1)
    assert (queue.get("a"), queue.get("b")) == (1, 2)
    queue.close_write()
    assert queue.get("c") is None
    assert queue.max_size() == 1024


def test_a_full_queue_lets_the_wanted_item_in():
    queue = KeydQueue(maxsize=1)
    queue.put("late", 0)
    got = []
    reader = threading.Thread(target=lambda: got.append(queue.get("now")))
    reader.start()
    queue.put("now", 1)
    reader.join(10)
    assert got == [1]
    queue.close()
    assert queue.get("late") is None


def test_a_device_has_two_queues():
    queues = PerDeviceQueue("xla:0", 3, 2)
    assert queues.device == "xla:0"
    assert (queues.cpu_loader_queue.max_size(), queues.queue.max_size()) == (3, 2)


def test_every_queue_has_a_bound_and_both_ends():
    for queue in (Queue(maxsize=3), KeydQueue(maxsize=3)):
        assert isinstance(queue, names.QueueBase) and queue.max_size() == 3
    assert names.QueueBase().max_size() == 1024
