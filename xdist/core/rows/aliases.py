"""Which result of a program is written over which array that is given away."""

from collections import Counter
from collections.abc import Sequence

import torch

from torch_xdist.core.trace.tensor_types import TensorType
from torch_xdist.core.trace.trace import Entry, rows_of, types_of


def pairs(entries: Sequence[Entry], given: Sequence[int], outs: Sequence[int]) -> dict[int, int]:
    """For places in `given` the place in `outs` of what is written over it, where there is one.

    JAX pairs those of one type as they come, and gradients come before the parameters that they
    change: they would take the parameters' places, these the moments', and XLA would copy each.
    A row's result goes on from the first operand of its shape and dtype that goes on from what is
    given, and that none of its other results does: an update's, from what it updates. Gradients go
    on from nothing. The last takes the place.
    """
    types = types_of(entries)
    origins = {slot: place for place, slot in enumerate(given)}
    for first, row in rows_of(entries):
        if "backward" in row[0].name:
            continue
        known: dict[int, _Kind] = {}
        for slot in row[1:]:
            if slot in origins:
                known.setdefault(origins[slot], _kind(types[slot]))
        for slot, type_ in enumerate(row[0].types, first):
            kind = _kind(type_)
            place = next((place for place, other in known.items() if other == kind), None)
            if place is not None:
                origins[slot] = place
                del known[place]
    found: dict[int, int] = {}
    for place, slot in sorted(enumerate(outs), key=lambda pair: -pair[1]):
        if slot in origins:
            found.setdefault(origins[slot], place)
    return found


_Kind = tuple[tuple[int, ...], torch.dtype]


def _kind(type_: TensorType) -> _Kind:
    """What two arrays must share to have one place; strides are torch's alone."""
    return type_.shape, type_.dtype


def of_use(
    mask: Sequence[bool], leaves: Sequence[TensorType], results: Sequence[TensorType]
) -> tuple[bool, ...]:
    """The mask without arrays that nothing can be written over, as no result is of their kind.

    Args:
        mask: which of the leaves may be given away.
    """
    kinds = {*map(_kind, results)}
    return tuple([give and _kind(leaf) in kinds for give, leaf in zip(mask, leaves)])


def is_within(less: Sequence[bool], mask: Sequence[bool]) -> bool:
    """Whether the mask gives all that `less` does."""
    return all(other for one, other in zip(less, mask) if one)


def is_enough(
    less: Sequence[bool],
    mask: Sequence[bool],
    leaves: Sequence[TensorType],
    results: Sequence[TensorType],
) -> bool:
    """Whether a program that is given `less` needs nothing of what the mask gives beside it."""
    missing = _missing(less, leaves, results)
    rest = [leaf for one, other, leaf in zip(less, mask, leaves) if other and not one]
    return all(missing[_kind(leaf)] <= 0 for leaf in rest)


def wanted(
    mask: Sequence[bool], leaves: Sequence[TensorType], results: Sequence[TensorType]
) -> list[int]:
    """The places of leaves that the mask does not give, and that results could be written over."""
    missing = _missing(mask, leaves, results)
    found = enumerate(zip(mask, leaves))
    return [place for place, (give, leaf) in found if not give and missing[_kind(leaf)] > 0]


def _missing(
    mask: Sequence[bool], leaves: Sequence[TensorType], results: Sequence[TensorType]
) -> Counter[_Kind]:
    """How many results of each kind have nothing to be written over."""
    found = Counter(map(_kind, results))
    found.subtract(_kind(leaf) for give, leaf in zip(mask, leaves) if give)
    return found
