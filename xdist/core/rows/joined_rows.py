"""Rows that compute together what one plan computes better: how such ones are put in place."""

from collections.abc import Callable, Mapping, Sequence

from torch_xdist.core.trace.plans import Plan
from torch_xdist.core.trace.trace import Entry, Row, rows_of

Rows = Mapping[int, Row]
# The plans of such rows, and the slots of what the one plan reads in their place.
Found = tuple[tuple[Plan, ...], Sequence[int]]


def joined(
    entries: Sequence[Entry],
    look: Callable[[Rows, Row], Found | None],
    join: Callable[..., Plan],
) -> Sequence[Entry]:
    """The rows, of which each that is the last of such ones computes what all of them do.

    Args:
        look: by all rows and one, what it is the last of; None for most.
        join: makes the one plan of theirs, once for equal ones. It is of this program alone: no row
            of a tape has it.
    """
    rows = dict(rows_of(entries))
    changed: list[Entry] = []
    plans: dict[tuple[Plan, ...], Plan] = {}
    for slot, row in rows.items():
        if (found := look(rows, row)) is None:
            continue
        parts, operands = found
        if parts not in plans:
            plans[parts] = join(*parts)
        changed = changed or list(entries)
        changed[slot] = (plans[parts], *operands)
    return changed or entries
