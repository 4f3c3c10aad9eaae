"""Rows that make arrays of numbers or copies, and that nothing reads: other programs for nothing.

`state.setdefault("mean", torch.zeros_like(p))` makes zeros in each step, and uses them in the first
alone. And what looks like the first state of an optimizer has its values at once, beside its row,
so that the first step's program reads it as the later ones do.
"""

import dataclasses
import weakref
from collections.abc import Container, Mapping, Sequence
from typing import Any, NamedTuple

import jax

from torch_xdist.core.programs.launch import Launch, held_values
from torch_xdist.core.programs.program import PROGRAMS
from torch_xdist.core.tapes.partial_run import copy_rows
from torch_xdist.core.trace.notes import carry
from torch_xdist.core.trace.tensor_types import TensorType
from torch_xdist.core.trace.trace import Tape, Trace, rows_of
from torch_xdist.core.trace.values import Value

_FILLS = {
    "empty",
    "aten.clone.default",
    "aten.empty_like.default",
    "aten.fill.Scalar",
    "aten.full_like.default",
    "aten.new_empty.default",
    "aten.new_full.default",
    "aten.new_ones.default",
    "aten.new_zeros.default",
    "aten.ones_like.default",
    "aten.zero.default",
    "aten.zeros_like.default",
}


def without_unused(launch: Launch) -> tuple[Launch, bool] | None:
    """The launch without fills that nothing reads; None where there are none.

    Returns with it whether its program serves for both: it is fed with the same numbers.
    """
    rows = rows_of(launch.entries)
    wanted, unused, left = {*launch.outs}, set(), set[int]()
    for slot, row in reversed(rows):
        if row[0].name in _FILLS and slot not in wanted:
            unused.add(slot)
            left.update(row[1:])
        else:
            wanted.update(row[1:])
    # A program that takes nothing of the rows would not be given what they alone read.
    if not unused or launch.placement is not None or left & {*launch.leaves} - wanted:
        return None
    source = launch.tape
    # By what they take, not by what they were fed with: a recording that was interrupted fed none.
    is_fed_alike = not any(plan.scalar_types for slot, (plan, *_) in rows if slot in unused)
    if not is_fed_alike and PROGRAMS.missed_again(launch.key()):
        return None
    tape, places = _copied(source, unused, {})
    less = dataclasses.replace(
        launch,
        tape=tape,
        entries=tuple(tape.entries),
        leaves=tuple(tape.buffers),
        outs=tuple(places[slot] for slot in launch.outs),
    )
    return less, is_fed_alike


def _copied(
    source: Tape, without: Container[int], instead: Mapping[int, int]
) -> tuple[Tape, dict[int, int]]:
    """A copy of a tape without these rows, and the new slot of each old one.

    Args:
        instead: the slots of leaves, with those that stand for them.
    """
    tape, places = Tape(), dict[int, int]()
    tape.since_s = source.since_s
    for slot, entry in enumerate(source.entries):
        if slot in instead:
            places[slot] = places[instead[slot]]
        elif isinstance(entry, TensorType):
            # Each stays a leaf of its own, also where two have one array.
            buffer = source.buffers[slot]
            places[slot] = tape.moved[id(buffer)] = tape.enter(entry, buffer)
            carry(source.entries, slot, tape.entries, places[slot])
        elif entry is not None and slot not in without:
            copy_rows(source, [slot], tape, places)
    return tape, places


class Fill(NamedTuple):
    """What a row made, and had its values at once.

    Attributes:
        slot: of the row, on the tape of this epoch.
        value: what has it.
        buffer: its array, which programs may write over.
    """

    epoch: int
    slot: int
    value: weakref.ref[Value]
    buffer: weakref.ref[jax.Array]


def give_values(value: Value, buffer: jax.Array) -> Fill:
    """Let what a row makes have its values at once; the row stays, and nothing reads it."""
    made = Fill(value.epoch, value.slot, weakref.ref(value), weakref.ref(buffer))
    value.epoch, value.buffer = 0, buffer
    return made


def take_back(trace: Trace, fills: Sequence[Fill], states: Container[int]) -> None:
    """Let what is pending read the rows of those fills that are no states.

    Args:
        states: the ids of values; of those that are gone, no matter.
    """
    source: Any = trace.tape
    mine = [fill for fill in fills if fill.epoch == source.epoch]
    if not mine or source.counted:
        return
    with trace.lock:
        trace.finish_writes(source)
        alive = {*map(id, held_values(source))}
        back = [f for f in mine if id(f.value()) not in alive or id(f.value()) not in states]
        rows = {id(f.buffer()): f.slot for f in back}
        instead = {slot: rows[id(b)] for slot, b in source.buffers.items() if id(b) in rows}
        unread = [f for f in back if id(f.value()) in alive]
        if not instead and not unread:
            return
        target, places = _copied(source, (), instead)
        trace.tape = target
        # Also those that nothing refers to any more: what they have is not written over.
        for value in source.values:
            trace.list_value(value, target)
            if value.epoch == source.epoch:
                value.slot, value.epoch = places[value.slot], target.epoch
        for fill in unread:
            _make_pending(fill, places[fill.slot], target)


def _make_pending(fill: Fill, slot: int, tape: Tape) -> None:
    value = fill.value()
    # One that was written since is pending already, or has what another has.
    if value is not None and value.buffer is not None and value.buffer is fill.buffer():
        value.slot, value.epoch, value.buffer = slot, tape.epoch, None
