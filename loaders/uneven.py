"""Ranks whose loaders have different numbers of batches: found before a collective can hang.

Batches are read ahead in blocks of 1, 2, 4 .. 16; after each block every rank tells the others how
many it has (one exchange of an integer), and all draw the same conclusion. Asked for by
`uneven=`, and then every rank must make the loader and run through it. Runs in the thread that
makes the batches, off the critical path.
"""

from collections.abc import Callable, Iterator
from itertools import islice, repeat
from typing import Any, Literal

from torch_xdist.loaders.errors import ArgumentError, UnevenBatchesError

Uneven = Literal["error", "drop", "pad"]
# Gives this rank's number to the others; the numbers of all ranks, by rank.
Exchange = Callable[[int], list[int]]

MODES = ("error", "drop", "pad")
LARGEST_BLOCK = 16
FAILED = -1


def check_mode(mode: str | None) -> None:
    """Raise ArgumentError unless `mode` is None or a known one."""
    if mode is not None and mode not in MODES:
        raise ArgumentError(
            f"loader: uneven={mode!r}; it may be 'error', 'drop', 'pad', or None for no agreement"
        )


def agreed(batches: Iterator[Any], exchange: Exchange, mode: Uneven) -> Iterator[Any]:
    """The batches that all ranks take: the same number on every rank, or an error on every rank.

    Args:
        batches: this rank's own.
        exchange: called the same number of times on every rank.
        mode: "error" raises after the last common batch; "drop" stops there; "pad" goes on until
        the
            longest rank is through, repeating this rank's last batch.

    Raises: UnevenBatchesError naming the ranks and their counts. An exception of `batches` is
    raised
        after this rank's common batches; the other ranks get an error that names this one.
    """
    done, size = 0, 1
    last: Any = None
    while True:
        held, failure = _read(batches, size)
        counts = exchange(len(held) if failure is None else FAILED - len(held))
        if min(counts) <= FAILED:
            yield from held[: min(_length(count) for count in counts)]
            raise failure or _another_failed(counts, done)
        shortest, longest = min(counts), max(counts)
        if shortest != longest and mode != "pad":
            yield from held[:shortest]
            if mode == "error":
                raise _uneven(counts, done)
            return
        if done == 0 and shortest == 0 < longest:
            raise _nothing_to_repeat(counts)
        yield from held
        last = held[-1] if held else last
        yield from repeat(last, longest - len(held))
        if longest < size:
            return
        done, size = done + size, min(2 * size, LARGEST_BLOCK)


def _read(batches: Iterator[Any], size: int) -> tuple[list[Any], BaseException | None]:
    held: list[Any] = []
    try:
        for batch in islice(batches, size):
            held.append(batch)
    except Exception as error:
        return held, error
    return held, None


def _length(count: int) -> int:
    return count if count >= 0 else FAILED - count


def _nothing_to_repeat(counts: list[int]) -> UnevenBatchesError:
    empty = ", ".join(str(rank) for rank, count in enumerate(counts) if count == 0)
    return UnevenBatchesError(
        f"loader: rank {empty} has no batch at all, while others have some; uneven='pad' repeats"
        " the last batch and needs one; give every rank some data"
    )


def _another_failed(counts: list[int], done: int) -> UnevenBatchesError:
    failed = [rank for rank, count in enumerate(counts) if count <= FAILED]
    return UnevenBatchesError(
        f"loader: the loader of rank {', '.join(map(str, failed))} failed after batch"
        f" {done + min(_length(c) for c in counts)}; its own error says why"
    )


def _uneven(counts: list[int], done: int) -> UnevenBatchesError:
    shortest = min(counts)
    short = [rank for rank, count in enumerate(counts) if count == shortest]
    more = [rank for rank, count in enumerate(counts) if count > shortest]
    return UnevenBatchesError(
        f"loader: rank {', '.join(map(str, short))} has {done + shortest} batches, rank"
        f" {', '.join(map(str, more))} more; give every rank the same number"
        " (DistributedSampler with drop_last=True), or choose uneven='drop' or uneven='pad'"
    )
