"""Array messages to ranks that are there, that come later, and that have ended."""

import threading
import time

import numpy as np
import pytest

from torch_xdist.collectives.errors import JoinError, NoAnswerError, RankLostError
from torch_xdist.collectives.shared_memory.array_messages import ArrayMessage
from torch_xdist.collectives.shared_memory.delivery import Delivery


class Peers:
    """The other ranks, some of which have not started."""

    def __init__(self, *started):
        self.started, self.came = set(started), threading.Condition()
        self.got: list[tuple[int, int]] = []
        self.error: Exception | None = None

    def has_started(self, rank):
        return rank in self.started

    def start(self, rank):
        with self.came:
            self.started.add(rank)
            self.came.notify_all()

    def ask(self, rank, what, question, descriptors, start_s):
        with self.came:
            if not self.came.wait_for(lambda: rank in self.started, start_s):
                raise JoinError(f"rank {rank} did not come")
        if self.error is not None:
            raise self.error
        self.got.append((rank, question["channel"]))


def send(delivery, *channels):
    for channel in channels:
        message = ArrayMessage.packed(0, channel, "uint8[1]", "", np.array([1], np.uint8))
        delivery.deliver(message)
        message.close()


def test_a_rank_that_starts_later_gets_all_in_order():
    peers = Peers(1)
    delivery = Delivery(0, 3, peers)
    send(delivery, 0, 1, 2)
    assert peers.got == [(1, 0), (1, 1), (1, 2)]
    peers.start(2)
    assert delivery._workers.wait(20)
    send(delivery, 3)
    assert [channel for rank, channel in peers.got if rank == 2] == [0, 1, 2, 3]


def test_a_message_that_finds_no_thread_is_an_error_and_the_next_is_not_held_up(monkeypatch):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    peers = Peers()
    delivery = Delivery(0, 2, peers)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            send(delivery, 0)
    send(delivery, 1)
    peers.start(1)
    assert delivery._workers.wait(20) and peers.got == [(1, 1)]


def test_a_rank_that_ended_gets_nothing():
    peers = Peers(1)
    peers.error = RankLostError("rank 1 has ended")
    send(Delivery(0, 2, peers), 1)


def test_a_rank_that_lives_and_takes_nothing_is_an_error():
    peers = Peers(1)
    peers.error = NoAnswerError("send(channel 1): rank 1 lives and does not answer rank 0")
    with pytest.raises(NoAnswerError, match="rank 1 lives and does not answer"):
        send(Delivery(0, 2, peers), 1)


def test_messages_for_a_rank_that_never_starts_are_not_dropped_in_silence(capsys):
    delivery = Delivery(0, 2, Peers(), start_s=0.1)
    send(delivery, 1, 2)
    assert delivery._workers.wait(20)
    told = capsys.readouterr().err
    assert "torch-xdist: rank 0 drops 2 messages of send: rank 1 did not start" in told


def test_the_end_of_the_process_waits_for_a_rank_that_may_receive(capsys):
    peers = Peers()
    delivery = Delivery(0, 2, peers)
    send(delivery, 1)
    timer = threading.Timer(0.3, peers.start, [1])
    timer.start()
    delivery._finish()
    assert peers.got == [(1, 1)]
    assert "rank 0 waits at its end for rank 1 to start and receive" in capsys.readouterr().err
    timer.join()


def test_the_end_of_the_process_waits_no_longer_than_a_start_may_take():
    delivery = Delivery(0, 2, Peers(), start_s=0.2)
    send(delivery, 1)
    start_s = time.monotonic()
    delivery._finish()
    assert time.monotonic() - start_s < 5


def test_the_end_of_the_process_does_not_wait_for_what_another_rank_received():
    peers = Peers()
    delivery = Delivery(0, 2, peers)
    message = ArrayMessage.packed(0, 1, "uint8[1]", "", np.array([1], np.uint8))
    delivery.deliver(message)
    assert message.take()
    delivery._finish()
    assert peers.got == []
    peers.start(1)
    assert delivery._workers.wait(20)
    message.close()
