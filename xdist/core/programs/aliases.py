"""Which result of a program is written over which of the arrays that are given to it.

JAX pairs those of one type as they come, and gradients come before the parameters that they change:
they would take the parameters' places, these the moments', and XLA would copy each of them.
"""

from collections.abc import Sequence

from torch_xdist.core.trace.tensor_types import TensorType
from torch_xdist.core.trace.trace import Entry, rows_of, types_of


def pairs(entries: Sequence[Entry], given: Sequence[int], outs: Sequence[int]) -> dict[int, int]:
    """For places in `given` the place in `outs` of what it becomes, where there is one.

    A row's result goes on from the first operand of its type that goes on from what is given, and
    that none of its other results does: an update's, from what it updates. The last takes the
    place.
    """
    types = types_of(entries)
    origins = {slot: place for place, slot in enumerate(given)}
    for first, row in rows_of(entries):
        known: dict[int, TensorType] = {}
        for slot in row[1:]:
            if slot in origins:
                known.setdefault(origins[slot], types[slot])
        for slot, type_ in enumerate(row[0].types, first):
            place = next((place for place, other in known.items() if other == type_), None)
            if place is not None:
                origins[slot] = place
                del known[place]
    found: dict[int, int] = {}
    for place, slot in sorted(enumerate(outs), key=lambda pair: -pair[1]):
        if slot in origins:
            found.setdefault(origins[slot], place)
    return found
