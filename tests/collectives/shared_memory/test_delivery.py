"""Parcels to ranks that are there, that come later, and that have ended."""

import threading

import numpy as np
import pytest

from torch_xdist.collectives.errors import CollectiveError
from torch_xdist.collectives.shared_memory import delivery
from torch_xdist.collectives.shared_memory.array_messages import ArrayMessage
from torch_xdist.collectives.shared_memory.delivery import Delivery


def parcel(number):
    return ArrayMessage.packed(0, number, "uint8[1]", "", np.array([number], np.uint8))


def refuses(target, parcel):
    raise ConnectionResetError("closed")


def test_a_rank_that_starts_later_gets_all_in_order():
    started, got = {1}, []
    lock = threading.Lock()

    def hand(target, parcel):
        with lock:
            got.append((target, parcel.channel))

    ours = Delivery(0, 3, hand, started.__contains__, lambda rank: False)
    for number in range(5):
        letter = parcel(number)
        ours.deliver(letter)
        letter.close()
        if number == 3:
            assert got == [(1, n) for n in range(4)]
            started.add(2)
    for thread in threading.enumerate():
        if getattr(thread, "_target", None) == ours._deliver_later:
            thread.join()
    assert [n for target, n in got if target == 2] == list(range(5))
    assert [n for target, n in got if target == 1] == list(range(5))


def test_a_rank_that_ended_gets_nothing():
    Delivery(0, 2, refuses, lambda rank: True, lambda rank: True).deliver(parcel(1))


def test_a_rank_that_lives_and_takes_nothing_is_named(monkeypatch):
    monkeypatch.setattr(delivery, "_END_S", 0.05)
    ours = Delivery(0, 2, refuses, lambda rank: True, lambda rank: False)
    message = r"send\(channel 1\) of uint8\[1\]: rank 1 did not take it \(closed\); look at the ou"
    with pytest.raises(CollectiveError, match=message):
        ours.deliver(parcel(1))
