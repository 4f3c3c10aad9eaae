"""Reads that leave collectives pending: the rows a value needs, run beside the trace.

A rank may print a value between recording a collective and the end of the step, while the others
do not. The trace then stays as it is, so that its program is the same on every rank; the rows of
the value are computed a second time with it. Called by `cuts.py` alone.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch_xdist.core.plan import number_types
from torch_xdist.core.trace import Cell, Trace
from torch_xdist.core.walk import Row, result_slots


@dataclass(slots=True)
class Entry:
    """A row with all that is its own: its first result slot and its scalars."""

    row: Row
    start: int
    floats: list[float]
    ints: list[int]

    def results(self) -> range:
        return range(self.start, self.start + len(self.row[0].kinds))


def aside(trace: Trace, wanted: Sequence[int]) -> tuple[Trace, list[int]] | None:
    """A trace of only the rows that `wanted` slots need, and those slots in it.

    None where one of the rows is a collective.
    """
    needed = set(wanted)
    chosen: list[Entry] = []
    for entry in reversed(list(_entries(trace))):
        if not needed.isdisjoint(entry.results()):
            if entry.row[0].is_collective:
                return None
            chosen.append(entry)
            needed.update(entry.row[1:])
    beside = Trace(trace.device_index, trace.rng)
    places = _enter_leaves(beside, trace, needed)
    for entry in reversed(chosen):
        _enter(beside, entry, places)
    return beside, [places[slot] for slot in wanted]


def _entries(trace: Trace) -> Iterator[Entry]:
    floats, ints = iter(trace.floats), iter(trace.ints)
    for row, start in zip(trace.rows, result_slots(trace.rows, set(trace.leaf_slots))):
        types = number_types(row[0])
        yield Entry(
            row,
            start,
            [next(floats) for _ in range(types.count(float))],
            [next(ints) for _ in range(types.count(int) + 2 * row[0].is_random)],
        )


def _enter_leaves(beside: Trace, trace: Trace, needed: set[int]) -> dict[int, int]:
    places = {}
    for slot, kind, buffer in zip(trace.leaf_slots, trace.leaf_kinds, trace.leaf_buffers):
        if slot in needed:
            leaf = Cell(kind, beside)
            leaf.buffer = buffer
            places[slot] = beside.enter_leaf(leaf)
    return places


def _enter(beside: Trace, entry: Entry, places: dict[int, int]) -> None:
    plan = entry.row[0]
    start = beside.next_slot
    beside.next_slot = start + len(plan.kinds)
    beside.rows.append((plan, *[places[slot] for slot in entry.row[1:]]))
    beside.floats.extend(entry.floats)
    beside.ints.extend(entry.ints)
    places.update(zip(entry.results(), range(start, beside.next_slot)))
