"""The rows that some values need, taken out of a tape.

Where a value is read while collectives are pending, only these run, so that the pending program
stays the same on every rank. And where another thread needs a value, only these run, so that its
moment does not change what the recording thread's programs are.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

from torch_xdist.core.trace.notes import carry
from torch_xdist.core.trace.tensor_types import TensorType
from torch_xdist.core.trace.trace import Tape, made_by, rows_of

_Node = TypeVar("_Node", bound=Hashable)


def needed_rows(tape: Tape, wanted: Sequence[int]) -> set[int]:
    """The first slots of the rows that the wanted slots need, and the leaves they read."""
    first_of = {}
    for slot, row in rows_of(tape.entries):
        first_of.update(dict.fromkeys(made_by(slot, row[0]), slot))
    needed: set[int] = set()
    waiting = list(wanted)
    while waiting:
        slot = waiting.pop()
        first = first_of.get(slot, slot)
        if first not in needed:
            needed.add(first)
            if slot in first_of:
                waiting.extend(tape.entries[first][1:])  # type: ignore[index]
    return needed


def has_collective(tape: Tape, slots: set[int]) -> bool:
    """Whether one of these rows exchanges data with other ranks."""
    return not slots.isdisjoint(tape.collectives)


def copy_rows(
    source: Tape, slots: Sequence[int], target: Tape, known: dict[int, int] | None = None
) -> dict[int, int]:
    """Append rows and leaves of one tape to another; returns the new slot of each old one.

    Args:
        slots: in the order they are appended in, operands before their users.
        known: the new slots of some that are there already; it gets the others too.
    """
    places: dict[int, int] = {} if known is None else known
    for slot in slots:
        entry = source.entries[slot]
        assert entry is not None
        if isinstance(entry, TensorType):
            place = places[slot] = target.move_in(entry, source.buffers[slot])
            carry(source.entries, slot, target.entries, place)
            continue
        plan, *operands = entry
        first = target.add_row(
            plan,
            [places[operand] for operand in operands],
            source.scalars.get(slot, ()),
            source.collectives.get(slot, ""),
        )
        carry(source.entries, slot, target.entries, first)
        places.update(zip(made_by(slot, plan), made_by(first, plan)))
    return places


def post_order(
    roots: Sequence[_Node], operands_of: Callable[[_Node], Sequence[_Node]]
) -> list[_Node]:
    """Operands before users, the last operand of a node first, as torch's lazy tensors do."""
    order: list[_Node] = []
    is_done: dict[_Node, bool] = {}
    for root in roots:
        stack = [root]
        while stack:
            node = stack[-1]
            if node not in is_done:
                is_done[node] = False
                stack.extend(o for o in operands_of(node) if o not in is_done)
                continue
            stack.pop()
            if not is_done[node]:
                is_done[node] = True
                order.append(node)
    return order
