"""The rows of a program as XLA computes them best: what all that look for better ones find."""

from collections.abc import Sequence

from torch_xdist.core.rows import (
    flipped_runs,
    long_chains,
    permuted_stacks,
    placed_gradients,
    relu_masks,
    transposed_matrices,
    unknown_places,
)
from torch_xdist.core.trace.trace import Entry
from torch_xdist.platforms import Choices


def of_program(
    entries: Sequence[Entry], choices: Choices, *, is_sharded: bool
) -> tuple[Sequence[Entry], frozenset[int]]:
    """(the entries with better rows in their places, the slots that are computed once).

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
        return found, frozenset()
    return unknown_places.of_many(found), long_chains.to_settle(found)
