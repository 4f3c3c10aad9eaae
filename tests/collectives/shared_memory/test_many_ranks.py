"""As many ranks on one host as its largest machines have cores."""

import time

import numpy as np
import pytest

RANKS = 128


@pytest.fixture(scope="module")
def many():
    from rank_pool import RankPool

    with RankPool(RANKS) as ranks:
        yield ranks


def permutes_late(rank, size):
    """The last rank is late in a ring, whose pairs are too many to be told; what came, and how long
    the others waited."""
    from rank_programs import launched

    from torch_xdist.collectives import inside

    ring = tuple((source, (source + 1) % size) for source in range(size))
    step = launched(lambda x: inside.permute(x, ring))
    step(np.full(3, rank, np.float32))
    if rank == size - 1:
        time.sleep(2.0)
    start_s = time.monotonic()
    return step(np.full(3, rank, np.float32), "train.py:7").tolist(), time.monotonic() - start_s


@pytest.mark.long
def test_a_late_rank_among_128_is_waited_for(many):
    outcomes = many.run(RANKS, permutes_late, timeout_s=250)
    assert [found for found, _ in outcomes] == [[float((r - 1) % RANKS)] * 3 for r in range(RANKS)]
    assert max(waited_s for _, waited_s in outcomes) > 1.0


def differs(rank, size):
    """Rank 100 calls another collective than all others."""
    from rank_programs import launched

    from torch_xdist.collectives import inside
    from torch_xdist.collectives.errors import MismatchError

    ring = tuple((source, (source + 1) % size) for source in range(size))
    step = launched(lambda x: inside.permute(x, ring[: size - (rank == 100)]))
    try:
        step(np.full(3, rank, np.float32), "train.py:7")
    except MismatchError as error:
        return str(error)
    return None


@pytest.mark.long
def test_128_ranks_name_the_one_that_differs(many):
    for told in many.run(RANKS, differs, timeout_s=250):
        assert "; rank 100 called collective_permute([[0, 1], [1, 2], " in told
        assert "...] (127 in all)) of float32[3] #1 (train.py:7)" in told
        assert "...] (128 in all)) of float32[3] #1 (train.py:7)" in told


def loses_one(rank, size):
    """Rank 100 is killed while all others wait for it."""
    import os

    from rank_programs import summing

    from torch_xdist.collectives.errors import RankLostError

    reduce = summing()
    reduce(np.ones(2, np.float32))
    if rank == 100:
        os.kill(os.getpid(), 9)
    start_s = time.monotonic()
    try:
        reduce(np.ones(2, np.float32))
    except RankLostError as error:
        return str(error), time.monotonic() - start_s
    return None


@pytest.mark.long
def test_127_ranks_name_the_one_that_was_killed(many):
    outcomes = many.outcomes(RANKS, loses_one, timeout_s=250)
    assert outcomes.pop(100) == (False, "died with exit code -9")
    for good, found in outcomes:
        assert good, found
        assert "rank 100 (pid" in found[0] and "has ended" in found[0]
        # Two cores wake 127 processes; on a machine for so many ranks it is a second.
        assert found[1] < 60
