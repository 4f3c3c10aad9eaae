"""A word of shared memory that is counted up and slept on."""

import mmap
import time

import numpy as np
import pytest

from torch_xdist.collectives.errors import CollectiveError
from torch_xdist.collectives.shared_memory import futex


@pytest.fixture
def word():
    """(its address, a view of it)."""
    memory = mmap.mmap(-1, 4096)
    bytes_ = np.frombuffer(memory, np.uint8)
    return bytes_.ctypes.data, bytes_[:4].view(np.uint32)


def test_a_count_goes_on_from_zero_after_its_largest_value(word):
    address, view = word
    view[0] = 2**32 - 2
    seen = []
    for _ in range(3):
        futex.add_and_wake(address)
        seen.append(int(view[0]))
    assert seen == [2**32 - 1, 0, 1]


def counts(rank, size, times):
    """Every rank adds to one word; the last value that it saw."""
    from torch_xdist.collectives.shared_memory import futex, transport

    end = transport.endpoint()
    memory = end._memory("a word", tuple(range(size)), 4096)
    bytes_ = np.frombuffer(memory, np.uint8)
    for _ in range(times):
        futex.add_and_wake(bytes_.ctypes.data)
    view, deadline = bytes_[:4].view(np.uint32), time.monotonic() + 20
    while (seen := int(view[0])) < times * size and time.monotonic() < deadline:
        futex.wait(bytes_.ctypes.data, seen, 1.0)
    return int(view[0])


def test_no_count_of_two_processes_is_lost(pool):
    assert pool.run(2, counts, 20_000) == [40_000, 40_000]


def sleeps(rank, size):
    """How long rank 0 slept until rank 1 woke it."""
    from torch_xdist.collectives.messages import communicator
    from torch_xdist.collectives.shared_memory import futex, transport

    memory = transport.endpoint()._memory("a word", (0, 1), 4096)
    address = np.frombuffer(memory, np.uint8).ctypes.data
    communicator.exchange("ready")
    if rank == 1:
        time.sleep(0.3)
        futex.add_and_wake(address)
        return None
    before_s = time.monotonic(), time.process_time()
    futex.wait(address, 0, 30.0)
    return time.monotonic() - before_s[0], time.process_time() - before_s[1]


def test_a_sleeper_is_woken_by_another_process(pool):
    (waited_s, busy_s), _ = pool.run(2, sleeps)
    assert 0.1 < waited_s < 10
    assert busy_s < 0.1


def test_a_word_that_differs_is_not_slept_on(word):
    start_s = time.monotonic()
    futex.wait(word[0], 7, 30.0)
    assert time.monotonic() - start_s < 10


def test_where_the_kernel_refuses_a_wait_sleeps_for_a_moment(word, monkeypatch):
    monkeypatch.setattr(futex, "_NUMBER", -1)
    start_s = time.process_time()
    for _ in range(200):
        futex.wait(word[0], 0, 30.0)
    assert time.process_time() - start_s < 0.1  # a busy loop would take all of the next line
    start_s = time.monotonic()
    futex.wait(word[0], 0, 30.0)
    assert time.monotonic() - start_s >= futex._NAP_S


def test_where_the_kernel_refuses_a_count_is_a_store_on_processors_that_keep_the_order(
    word, monkeypatch
):
    monkeypatch.setattr(futex, "_NUMBER", -1)
    monkeypatch.setattr(futex, "_KEEPS_ORDER", True)
    word[1][0] = 2**32 - 1
    futex.add_and_wake(word[0])
    assert word[1][0] == 0
    monkeypatch.setattr(futex, "_KEEPS_ORDER", False)
    with pytest.raises(CollectiveError, match=r"the kernel refuses futexes \(ENOSYS\), without"):
        futex.add_and_wake(word[0])


def reorders(rank, size, rounds):
    """Rank 0 publishes numbers, first the data, then the count; rank 1 looks whether it ever sees a
    count whose data is older. Every processor this runs on must say no."""
    from torch_xdist.collectives.shared_memory import futex, transport

    keeps, futex._KEEPS_ORDER = futex._KEEPS_ORDER, False  # also where a fence does nothing
    memory = transport.endpoint()._memory("two words", (0, 1), 8192)
    bytes_ = np.frombuffer(memory, np.uint8)
    words = memoryview(memory).cast("I")
    if rank == 0:
        for number in range(1, rounds + 1):
            words[1024] = number
            futex.add_and_wake(bytes_.ctypes.data)
        return 0
    wrong, seen = 0, 0
    while seen < rounds:
        seen = words[0]
        futex.fence()
        wrong += words[1024] < seen
    futex._KEEPS_ORDER = keeps
    return wrong


def test_data_is_seen_before_its_count(pool):
    assert pool.run(2, reorders, 20_000) == [0, 0]
