"""The barrier of a group: counts that wrap, members that fail, and what the others are told."""

import os
import time

import numpy as np
import pytest


def past_the_largest_count(rank, size, rounds):
    """All-reduces of a group whose counts wrap on their way; the sums."""
    from torch_xdist.collectives.messages import communicator
    from torch_xdist.collectives.shared_memory import algorithms, transport
    from torch_xdist.collectives.shared_memory.segment import Segment

    end, everybody = transport.endpoint(), tuple(range(size))
    slot_bytes = algorithms.slot_bytes(size)
    memory = end._memory("old group", everybody, Segment.size_bytes(size, slot_bytes))
    # As after 2**32 - 5 barriers: every member has come equally often.
    memoryview(memory).cast("I")[rank * 1024] = 2**32 - 5
    communicator.exchange("counted")
    segment = Segment(memory, everybody, rank, slot_bytes, watch=end)
    sums = []
    for turn in range(rounds):
        x = np.array([turn * 10 + rank], np.int64)
        algorithms.all_reduce(segment, "all_reduce(sum)", "sum", [x], [x])
        sums.append(int(x[0]))
    return sums, memoryview(memory).cast("I")[rank * 1024]


@pytest.mark.parametrize("size", [2, 3])
def test_counts_go_on_after_their_largest_value(pool, size):
    expected = [turn * 10 * size + sum(range(size)) for turn in range(12)]
    assert pool.run(size, past_the_largest_count, 12) == [(expected, 7)] * size


def third_waits(rank, size):
    """Ranks 0 and 1 wait for each other in different groups, rank 2 for both."""
    from rank_programs import summing

    from torch_xdist.collectives.errors import CollectiveError
    from torch_xdist.collectives.messages import communicator

    world, pair, other = summing(), summing(((0, 1), (2,))), summing(((0, 2), (1,)))

    def told(reduce, value):
        start_s = time.monotonic()
        try:
            return float(reduce(np.full(1, value, np.float32))[0]), 0.0
        except CollectiveError as error:
            return f"{type(error).__name__}: {error}", time.monotonic() - start_s

    first = told(pair if rank == 1 else world, 1.0)
    communicator.exchange("all have failed")
    # Another value than in the first call: it must not be paired with that one.
    return first, told(world, 100.0), told(other, 5.0)


def test_an_error_of_two_members_reaches_the_third_and_the_group_has_failed(pool):
    outcomes = pool.run(3, third_waits)
    for first, _, _ in outcomes:
        assert first[0].startswith("MismatchError: ") and first[1] < 5
        assert "rank 0 called all_reduce(sum) of float32[1]" in first[0]
    (told, _), _, _ = outcomes[2]
    assert "rank 2 called all_reduce(sum) of float32[1] #1, and rank 0 has failed in this" in told
    assert "while rank 1 called all_reduce(sum) in groups [[0, 1], [2]]" in told
    for _, (again, _), _ in outcomes:
        assert "the group [0, 1, 2] cannot be used again" in again
    assert [other[0] for *_, other in outcomes] == [10.0, 5.0, 10.0]


def breaks_off(rank, size):
    """Rank 0 runs out of memory between two chunks; all call again afterwards."""
    from rank_programs import summing

    from torch_xdist.collectives.errors import CollectiveError
    from torch_xdist.collectives.shared_memory import algorithms, transport

    reduce, fold, calls = summing(), algorithms.fold, []
    transport.endpoint()._on_unreadable = None  # through the shared memory

    def folds(*arguments):
        calls.append(1)
        if rank == 0 and len(calls) == 2:
            raise MemoryError("no room for a chunk")
        return fold(*arguments)

    algorithms.fold = folds
    found = []
    try:
        for _ in range(2):
            try:
                found.append(reduce(np.ones(3_000_000, np.float32)).tolist()[:1])
            except (CollectiveError, MemoryError) as error:
                found.append(f"{type(error).__name__}: {error}")
    finally:
        algorithms.fold = fold
    return found


def test_an_error_in_the_middle_of_a_collective_is_never_a_wrong_sum(pool):
    first, second = pool.run(2, breaks_off)
    assert first[0] == "MemoryError: no room for a chunk"
    assert "rank 0 has failed in this group: MemoryError('no room for a chunk')" in second[0]
    for found in (first, second):
        assert "cannot be used again" in found[1]


def ends_well(rank, size, how):
    """Rank 1 ends, by itself or killed, while the others wait for it."""
    from rank_programs import summing

    from torch_xdist.collectives.errors import CollectiveError

    reduce = summing()
    reduce(np.ones(2, np.float32))
    if rank == 1:
        os._exit(0) if how == "exit" else os.kill(os.getpid(), 9)
    start_s = time.monotonic()
    try:
        reduce(np.ones(2, np.float32), "train.py:77")
    except CollectiveError as error:
        return f"{type(error).__name__}: {error}", time.monotonic() - start_s
    return None


@pytest.mark.parametrize("how", ["exit", "kill"])
def test_a_rank_that_ended_is_named_within_seconds_also_with_exit_code_0(pool, how):
    first, second, third = pool.outcomes(3, ends_well, how)
    assert second == (False, f"died with exit code {0 if how == 'exit' else -9}")
    for rank, (good, (told, waited_s)) in ((0, first), (2, third)):
        assert good and waited_s < 5
        assert told.startswith("RankLostError: rank 1 (pid ")
        assert "has ended after all_reduce(sum) of float32[2] #1, while" in told
        assert f"rank {rank} waited" in told
        assert "s in all_reduce(sum) of float32[2] #2 (train.py:77); give every rank" in told


def interrupted(rank, size):
    """Rank 0 is interrupted while it waits."""
    from rank_programs import summing

    from torch_xdist.collectives.errors import CollectiveError
    from torch_xdist.collectives.shared_memory import segment

    reduce = summing()
    if rank == 1:
        time.sleep(1.0)
    else:

        def interrupt(self, waited_s):
            raise KeyboardInterrupt("^C")

        segment.Segment._refuse_if_ended = interrupt
    try:
        reduce(np.ones(2, np.float32))
    except (CollectiveError, RuntimeError, KeyboardInterrupt) as error:
        return f"{type(error).__name__}: {error}"
    return None


def test_an_interrupted_rank_does_not_leave_the_others_with_half_a_meeting():
    from rank_pool import RankPool

    with RankPool(2) as fresh:
        first, second = fresh.run(2, interrupted)
    assert "KeyboardInterrupt" in first
    assert "rank 0 has failed in this group: KeyboardInterrupt('^C')" in second
