"""Arrays in queues: who takes them, and what is said while nobody sends."""

import os
import resource
import threading
import time

import numpy as np
import pytest

from torch_xdist.collectives import wait_report
from torch_xdist.collectives.errors import CollectiveError, MismatchError
from torch_xdist.collectives.shared_memory import array_messages
from torch_xdist.collectives.shared_memory.array_messages import (
    ArrayMessage,
    ArrayQueue,
    PointToPoint,
)


class Others:
    """What a receiver sees of the other ranks."""

    def __init__(self, *reasons):
        self.reasons, self.said = reasons, []

    def waits(self, call):
        self.said.append(call)

    def stuck(self):
        return self.reasons


@pytest.fixture
def three():
    """Three ranks of one process."""
    queues = [ArrayQueue() for _ in range(3)]

    def deliver(source):
        def to_the_others(message):
            for rank, queue in enumerate(queues):
                if rank != source:
                    queue.put(message.copy())

        return to_the_others

    return [PointToPoint(rank, deliver(rank), queue) for rank, queue in enumerate(queues)]


def received(rank, channel, kind="int64[3]", watch=None):
    out = np.zeros(3, np.int64)
    rank.receive(channel, out, kind, watch or Others())
    return out.tolist()


def test_messages_of_a_channel_keep_their_order_and_channels_do_not_mix(three):
    for count in range(3):
        three[0].send(4, np.full(3, count), "int64[3]", "")
        three[1].send(5, np.full(3, 10 + count), "int64[3]", "")
    assert [received(three[2], 5)[0] for _ in range(3)] == [10, 11, 12]
    assert [received(three[2], 4)[0] for _ in range(3)] == [0, 1, 2]


def test_one_rank_alone_takes_a_message_and_the_others_drop_it(three):
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        three[0].send(1, np.arange(3), "int64[3]", "")
        assert received(three[1], 1) == [0, 1, 2]
    assert len(os.listdir("/proc/self/fd")) <= before + 1
    with pytest.raises(MismatchError, match="nobody is left to send on channel 1: gone"):
        received(three[2], 1, watch=Others("gone"))


def test_a_message_is_taken_once():
    message = ArrayMessage.packed(0, 1, "uint8[2]", "train.py:3", np.array([1, 2], np.uint8))
    again = message.copy()
    assert not again.is_taken()
    assert message.take() and not again.take() and again.is_taken()
    out = np.zeros(2, np.uint8)
    again.unpack(out)
    assert out.tolist() == [1, 2] and os.fstat(message.descriptor).st_size == 0
    assert message.what == "uint8[2] (train.py:3)"
    message.close()
    again.close()


def test_another_shape_is_refused_with_both(three):
    three[0].send(2, np.arange(2), "int64[2]", "a.py:1")
    message = (
        r"channel 2: rank 0 sent int64\[2\] \(a.py:1\), and rank 1 called recv\(channel 2\) of "
        r"int64\[3\]; give recv a tensor of the shape and dtype that is sent"
    )
    with pytest.raises(MismatchError, match=message):
        received(three[1], 2)


def test_a_wait_is_told_and_ends_when_the_message_comes(three, monkeypatch, capsys):
    monkeypatch.setattr(array_messages, "_LOOK_S", 0.02)
    monkeypatch.setattr(wait_report, "REPORT_EVERY_S", 0.1)
    watch, timer = Others(), threading.Timer(0.5, three[0].send, [3, np.arange(3), "int64[3]", ""])
    timer.start()
    assert received(three[1], 3, watch=watch) == [0, 1, 2]
    timer.join()
    assert watch.said == ["recv(channel 3) of int64[3]", ""]
    told = capsys.readouterr().err
    assert "rank 1 has waited 0 s in recv(channel 3) of int64[3] for a rank to send on" in told


def test_no_room_for_a_message_says_what_to_do(three):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        with pytest.raises(
            CollectiveError, match=r"send\(channel 1\) of int64\[3\]: rank 0 has no"
        ):
            three[0].send(1, np.arange(3), "int64[3]", "")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_large_array_arrives_whole(three):
    big = np.random.default_rng(0).integers(0, 255, 5_000_001, np.uint8)
    start_s = time.monotonic()
    three[0].send(9, big, "big", "")
    out = np.zeros_like(big)
    three[1].receive(9, out, "big", Others())
    assert np.array_equal(out, big) and time.monotonic() - start_s < 5
