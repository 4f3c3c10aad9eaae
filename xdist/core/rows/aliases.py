"""Which result of a program is written over which array that is given away."""

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
