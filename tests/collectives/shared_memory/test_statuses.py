"""What ranks say of themselves, and what others make of it."""

import mmap

import pytest

from torch_xdist.collectives.shared_memory import statuses
from torch_xdist.collectives.shared_memory.statuses import Statuses


def world(count):
    memory = mmap.mmap(-1, statuses.size_bytes(count))
    return [Statuses(memory, rank) for rank in range(count)]


def test_a_status_is_read_as_it_was_said():
    ends = world(3)
    ends[1].wait((0, 1, 2), "all_reduce(sum) #3 (train.py:7)", 77)
    status = ends[0].of(1)
    assert status.call == "all_reduce(sum) #3 (train.py:7)"
    assert status.ranks == {0, 1, 2} and status.group == 77 and not status.has_failed
    ends[1].clear()
    assert ends[0].of(1).call == "" and ends[0].of(1).version == status.version + 1


def test_a_rank_has_started_once_it_has_opened_the_memory():
    memory = mmap.mmap(-1, statuses.size_bytes(2))
    first = Statuses(memory, 0)
    assert first.has_started(0) and not first.has_started(1)
    Statuses(memory, 1)
    assert first.has_started(1)


@pytest.mark.parametrize("count", [128, 1024])
def test_a_call_that_is_too_long_is_cut_and_the_ranks_are_not(count):
    ends = world(count)
    everybody = tuple(range(count))
    pairs = [[rank, (rank + 1) % count] for rank in everybody]
    call = f"collective_permute({pairs}) of float32[3] → é"
    wait = ends[0].wait(everybody, call)
    ends[count - 1].wait(everybody, "é" * 2000)
    status = ends[1].of(0)
    assert call.startswith(status.call) and len(status.call) > 500
    assert status.ranks == set(everybody)
    assert set(ends[0].of(count - 1).call) == {"é"}
    assert wait.waits_for_us(count - 1) is None
    assert wait.waits_for_us(count - 1).ranks == set(everybody)


def test_a_rank_waits_for_us_once_two_looks_have_seen_the_same():
    first, second, third = world(3)
    wait = first.wait((0, 1), "all_gather")
    second.wait((0, 1), "all_reduce")
    assert wait.waits_for_us(1) is None
    assert wait.waits_for_us(1).call == "all_reduce"
    second.wait((0, 1), "all_to_all")
    assert wait.waits_for_us(1) is None
    third.wait((1, 2), "all_reduce")
    assert wait.waits_for_us(2) is None and wait.waits_for_us(2) is None
    third.wait((), "recv(channel 1)")
    assert wait.waits_for_us(2) is None
    assert wait.waits_for_us(2).call == "recv(channel 1)"


def test_a_call_that_failed_counts_only_while_one_waits():
    first, second = world(2)
    second.wait((0, 1), "all_reduce")
    second.fail()
    wait = first.wait((0, 1), "all_gather")
    assert wait.waits_for_us(1) is None and wait.waits_for_us(1) is None
    second.wait((0, 1), "all_reduce")
    second.fail()
    assert wait.waits_for_us(1) is None
    assert wait.waits_for_us(1).has_failed


def test_the_version_of_a_status_wraps():
    first, second = world(2)
    second._words[(statuses._AREA_BYTES + statuses._VERSION) // 4] = 2**32 - 2
    for call in ("one", "two", "three", "four"):
        second.wait((), call)
        assert first.of(1).call == call
    assert first.of(1).version == 2


def says_much(rank, size, rounds):
    """Rank 0 says one text after another; what rank 1 reads must always be one of them."""
    from torch_xdist.collectives.messages import communicator
    from torch_xdist.collectives.shared_memory import transport

    ends = transport.endpoint().statuses
    texts = [letter * length for letter, length in (("a", 900), ("b", 3), ("c", 500))]
    communicator.exchange("ready")
    if rank == 0:
        for number in range(rounds):
            ends.wait((0, 1), texts[number % 3], number % 3)
        ends.wait((), "over")
        return 0
    wrong, reads = 0, 0
    while True:
        status = ends.of(0)
        if status.call == "over":
            return wrong if reads else -1
        if status.call:
            reads += 1
            wrong += status.call != texts[status.group]


def test_a_status_is_never_read_in_halves(pool):
    assert pool.run(2, says_much, 5_000) == [0, 0]
