"""Ranks with different numbers of batches agree on what to do, whatever they have."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from torch_xdist.loaders.errors import ArgumentError, UnevenBatchesError
from torch_xdist.loaders.uneven import agreed, check_mode


class Table:
    """An exchange between threads that stand for ranks."""

    def __init__(self, ranks):
        self.numbers = [0] * ranks
        self.barrier = threading.Barrier(ranks)

    def of(self, rank):
        def exchange(number):
            self.numbers[rank] = number
            self.barrier.wait(20)
            result = list(self.numbers)
            self.barrier.wait(20)
            return result

        return exchange


def run(mode, loaders):
    """(batches, error) of each rank."""
    table = Table(len(loaders))

    def one(rank):
        got = []
        try:
            for batch in agreed(iter(loaders[rank]), table.of(rank), mode):
                got.append(batch)
        except Exception as error:
            return got, error
        return got, None

    with ThreadPoolExecutor(len(loaders)) as pool:
        return list(pool.map(one, range(len(loaders))))


@pytest.mark.parametrize("count", [0, 1, 3, 7, 40])
@pytest.mark.parametrize("mode", ["error", "drop", "pad"])
def test_equal_counts_pass_through(mode, count):
    assert run(mode, [range(count)] * 3) == [(list(range(count)), None)] * 3


@pytest.mark.parametrize("counts", [(5, 7), (7, 5), (20, 21, 50), (1, 2), (15, 31)])
def test_drop_stops_with_the_shortest(counts):
    for got, error in run("drop", [range(n) for n in counts]):
        assert got == list(range(min(counts))) and error is None


@pytest.mark.parametrize("counts", [(5, 7), (7, 5), (20, 21, 50), (1, 40)])
def test_pad_repeats_the_last_batch_until_the_longest_is_through(counts):
    for count, (got, error) in zip(counts, run("pad", [range(n) for n in counts])):
        assert error is None
        assert got == [*range(count), *[count - 1] * (max(counts) - count)]


def test_error_names_the_ranks_after_the_common_batches():
    for got, error in run("error", [range(6), range(4), range(6)]):
        assert got == list(range(4))
        assert isinstance(error, UnevenBatchesError)
        assert "rank 1 has 4 batches, rank 0, 2 more; give every rank the same" in str(error)


def test_pad_without_any_batch_is_an_error_on_every_rank():
    for _, error in run("pad", [range(0), range(5)]):
        assert "rank 0 has no batch at all, while others have some" in str(error)


@pytest.mark.parametrize("good", [0, 3, 8])
def test_a_loader_that_fails_stops_every_rank_after_the_good_batches(good):
    def failing():
        yield from range(good)
        raise OSError("disk gone")

    (got, own), (others, seen) = run("drop", [failing(), range(50)])
    assert got == others == list(range(good))
    assert isinstance(own, OSError)
    assert f"loader of rank 0 failed after batch {good}" in str(seen)


def test_an_unknown_mode_is_refused():
    with pytest.raises(ArgumentError, match="uneven='skip'; it may be 'error', 'drop', 'pad'"):
        check_mode("skip")
