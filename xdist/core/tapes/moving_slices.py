"""Slices that move: `data[i : i + 4]` in a loop is an input of one program, not one for each i.

Where a slice begins is a constant of the program, which is what XLA likes best, and what most
slices are. But where two programs differ in nothing else, the slices that moved get their places
from numbers that the program is fed with (`placed_rows`): what is read, written or filled. What is
read of an array that has its values already is taken before the program, which is fed with it.
"""

import itertools
import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

import jax

from torch_xdist import metrics
from torch_xdist.core.programs.launch import Launch, prepare
from torch_xdist.core.tapes.partial_run import copy_rows
from torch_xdist.core.tapes.placed_rows import Placed, anywhere, follows, placed, read, with_number
from torch_xdist.core.trace.notes import carry
from torch_xdist.core.trace.tensor_types import TensorType
from torch_xdist.core.trace.trace import Row, Tape, rows_of

# How many programs are remembered without the places of their slices.
_REMEMBERED = 1024


@dataclass(slots=True)
class _Seen:
    """A program without the places of its slices.

    Attributes:
        begins: where they were the first time, by slot.
        moved: the slots of those that have been elsewhere since.
    """

    begins: dict[int, int]
    moved: set[int] = field(default_factory=set)


_seen: OrderedDict[int, _Seen] = OrderedDict()
_lock = threading.Lock()


def as_inputs(launch: Launch) -> Launch | None:
    """The launch with numbers for the places of its slices; None where none is known to move."""
    if launch.placement is not None:
        return None
    parts = _parts(launch)
    moved = _moved(launch, parts) if any(parts.values()) else set()
    if not moved:
        return None
    metrics.count("MovingSlices", len(moved))
    changed = _changed(parts, launch.entries, moved)
    taken = _taken(launch, changed)
    tape, places, fed = _fed_with(launch, taken, changed)
    given = [places[s] for s in itertools.compress(launch.leaves, launch.mask) if s in places]
    outs = [places[slot] for slot in launch.outs]
    return prepare(tape, launch.device, outs, may_donate=False, donated={*given, *fed})


# The parts that rows read and write, by slot; None for views of such parts.
_Parts = dict[int, Placed | None]


def _parts(launch: Launch) -> _Parts:
    found: _Parts = {}
    for slot, row in rows_of(launch.entries):
        part = placed(row[0])
        if part is not None or (follows(row[0]) and row[1] in found):
            found[slot] = part
    return found


def _moved(launch: Launch, parts: _Parts) -> set[int]:
    """The slots of the parts that are not where they were in the first program that is else alike.

    There is none where this is the first; it is remembered now.
    """
    entries: list[Any] = list(launch.entries)
    for slot, part in parts.items():
        plan, *operands = entries[slot]
        types = tuple([t.shape for t in (*plan.operand_types, *plan.types)])
        how = (plan.name, repr(plan.args), repr(plan.kwargs)) if part is None else part.form
        entries[slot] = how, plan.operand_types[0].dtype, types, *operands
    begins = {slot: part.begin for slot, part in parts.items() if part is not None}
    # As a number, so that it keeps nothing alive: a wrong match costs time, and no value.
    key = hash((tuple(entries), *launch.key()[1:]))
    with _lock:
        seen = _seen.get(key)
        if seen is None:
            seen = _seen[key] = _Seen(begins)
            if len(_seen) > _REMEMBERED:
                _seen.popitem(last=False)
        _seen.move_to_end(key)
        seen.moved |= {slot for slot, begin in begins.items() if begin != seen.begins.get(slot)}
        return set(seen.moved)


def _changed(parts: _Parts, entries: Any, moved: set[int]) -> _Parts:
    """The parts that moved, and those of which an operand did: their plans know its place."""
    found: _Parts = {}
    for slot, part in parts.items():
        if slot in moved or not found.keys().isdisjoint(entries[slot][1:]):
            found[slot] = part
    return found


def _taken(launch: Launch, changed: _Parts) -> dict[int, jax.Array]:
    """The values of what is read of leaves, of parts of these, and of their views, by slot."""
    found: dict[int, jax.Array] = {}
    wanted = set(launch.outs)
    for slot, part in changed.items():
        plan, *operands = launch.entries[slot]  # type: ignore[misc]
        is_of_leaf = operands[0] in found or launch.entries[operands[0]].__class__ is TensorType
        if slot in wanted or not is_of_leaf or len(operands) > 1:
            continue
        whole = found[operands[0]] if operands[0] in found else launch.tape.buffers[operands[0]]
        if part is None:
            found[slot] = plan.lowering(whole, *plan.args[1:], **plan.kwargs)
        elif part.form.kind == "read":
            found[slot] = _read(part.form, whole, part.begin)
    return found


_read: Any = jax.jit(read, static_argnums=0)


def _fed_with(
    launch: Launch, taken: dict[int, jax.Array], changed: _Parts
) -> tuple[Tape, dict[int, int], set[int]]:
    """A tape in which what is taken are leaves, and the other parts have numbers for places.

    Returns it with the new slot of each old one, and the slots of what is taken.
    """
    source, tape, fed = launch.tape, Tape(), set()
    places: dict[int, int] = {}
    rows = {slot: row for slot, row in rows_of(source.entries) if slot not in taken}
    used = {slot for row in rows.values() for slot in row[1:]} | {*launch.outs}
    for slot, entry in enumerate(source.entries):
        if slot in taken and slot in used:
            type_ = entry[0].types[0]  # type: ignore[index]
            place = places[slot] = tape.enter(type_.at_zero or type_, taken[slot])
            fed.add(place)
        elif slot in changed and slot in rows:
            places[slot] = _numbered(rows[slot], changed[slot], places, tape)
            carry(source.entries, slot, tape.entries, places[slot])
        elif slot in rows or (slot in source.buffers and slot in used):
            copy_rows(source, [slot], tape, places)
    return tape, places, fed


def _numbered(row: Row, part: Placed | None, places: dict[int, int], tape: Tape) -> int:
    """Append a row of a changed part; returns its slot."""
    plan, *operands = row
    slots = [places[operand] for operand in operands]
    if part is None:
        return tape.add_row(anywhere(plan), slots, (), "")
    return tape.add_row(with_number(plan, part.form), slots, (part.begin,), "")
