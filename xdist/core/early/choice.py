"""Which results of a training step are there long before the step is over."""

import math
from collections.abc import Sequence

from torch_xdist import settings
from torch_xdist.core.early.announcement import Early
from torch_xdist.core.trace.tensor_types import TensorType
from torch_xdist.core.trace.trace import Entry, rows_of, types_of
from torch_xdist.core.trace.values import Device

# With it torch begins a backward pass.
_SEED = "aten.ones_like.default"
# Numbers computed from there on, a millisecond's work of two cores: of fewer, loops that read
# nothing would lose some percent by a program's question whether to announce, 30 us.
_LEAST_NUMBERS = 650_000


def early_results(
    device: Device, entries: Sequence[Entry], mask: Sequence[bool], outs: Sequence[int]
) -> Early | None:
    """The single numbers among `outs` that are computed before the last backward pass begins.

    They are the loss, and what a script computes of it and of the model's output before it calls
    `backward`. None where there are none, where nothing is updated, of small steps, and on GPUs and
    TPUs, whose programs cannot call the host without waiting for it.

    Args:
        mask: which leaves are given away: what the step updates.
    """
    if not (device.choices.is_host and any(mask) and settings.current().early_results):
        return None
    types = types_of(entries)
    seeds = [slot for slot, row in rows_of(entries) if row[0].name == _SEED and _fits(types[slot])]
    if not seeds:
        return None
    seed = seeds[-1]
    if sum(math.prod(type_.shape) for slot, type_ in types.items() if slot > seed) < _LEAST_NUMBERS:
        return None
    places = [
        place
        for place, slot in enumerate(outs)
        if slot < seed and _fits(types[slot]) and not _counts(entries, slot)
    ]
    return Early(tuple(places), tuple(outs[p] for p in places), seed) if places else None


def _counts(entries: Sequence[Entry], slot: int) -> bool:
    """Whether a number goes on from one that was there before, as a batch norm's steps do."""
    row = entries[slot]
    if not isinstance(row, tuple):
        return row is not None
    leaves = [entries[operand] for operand in row[1:]]
    return any(isinstance(leaf, TensorType) and not leaf.shape for leaf in leaves)


def _fits(type_: TensorType) -> bool:
    """Whether it is a single number, of a dtype that calls of XLA's know."""
    return not type_.shape and not (type_.dtype.is_floating_point and type_.dtype.itemsize == 1)
