"""The rows of a program as XLA computes them best: what all that look for better ones find."""

from collections.abc import Sequence
from typing import NamedTuple

from torch_xdist.core.rows import (
    flipped_runs,
    long_chains,
    permuted_stacks,
    placed_gradients,
    relu_masks,
    transposed_matrices,
    unknown_places,
)
from torch_xdist.core.trace.plans import Plan
from torch_xdist.core.trace.trace import Entry
from torch_xdist.platforms import Choices


class BetterRows(NamedTuple):
    """What a program computes in the place of its rows.

    Attributes:
        entries: with better rows in their places.
        settled: the slots that are computed once.
        fed_apart: what many rows do, each of which reads its numbers at a place of its own.
    """

    entries: Sequence[Entry]
    settled: frozenset[int] = frozenset()
    fed_apart: frozenset[Plan] = frozenset()


def of_program(entries: Sequence[Entry], choices: Choices, *, is_sharded: bool) -> BetterRows:
    """What a program of these rows computes best.

    Args:
        is_sharded: then parts of arrays lie elsewhere, and places have to be known.
    """
    on_cpu = choices.is_host and not is_sharded
    found = placed_gradients.beside_each_other(entries) if on_cpu else entries
    found = permuted_stacks.by_parts(found)
    found = transposed_matrices.as_they_lie(flipped_runs.from_the_end(found))
    if choices.reads_once:
        found = relu_masks.by_operands(found)
    if not on_cpu:
        return BetterRows(found)
    settled, fed_apart = long_chains.to_settle(found), unknown_places.of_numbers(found)
    return BetterRows(unknown_places.of_many(found), settled, fed_apart)
