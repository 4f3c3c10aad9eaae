"""The trace: what one thread recorded for one device and did not run yet.

A trace has one tape at a time; whoever runs the tape first puts a new one in its place. Recording
is optimistic: an operator reads `trace.tape` once, appends its row to that tape, and commits what
it changed by plain attribute stores, guarded by a look whether the tape is still the trace's. If it
is not, it records itself anew. So it does not matter what comes between: Ctrl-C, a finalizer that
records or cuts, another thread that needs a value of this trace. CPython runs none of them between
such stores, which neither call, nor jump back, nor make a container.
"""

import itertools
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

import jax

from torch_xdist.core.trace.notes import Asked, NotedEntries
from torch_xdist.core.trace.plans import Plan
from torch_xdist.core.trace.tensor_types import TensorType
from torch_xdist.core.trace.values import Device, RootValue, Value, ViewValue

# Of all tapes of all traces: a value's epoch tells the tape.
_epochs = itertools.count(1)
_new = object.__new__

# (plan, slot of each operand ...).
Row = tuple[Any, ...]
# A row, None for a further result of the row before it, or the type of a leaf.
Entry = Row | TensorType | None


def rows_of(entries: Sequence[Entry]) -> list[tuple[int, Row]]:
    """The rows among the entries, each with its first slot: no leaves, no further results."""
    return [
        (slot, entry)
        for slot, entry in enumerate(entries)
        # An operand of a recorded function is a tuple too, without a plan.
        if isinstance(entry, tuple) and entry[0].__class__ is Plan
    ]


def made_by(slot: int, plan: Plan) -> range:
    """The slots that a row makes, which begins with this one."""
    return range(slot, slot + max(1, len(plan.types)))


def types_of(entries: Sequence[Entry]) -> dict[int, TensorType]:
    """The tensor type of each slot that has one."""
    found = {slot: entry for slot, entry in enumerate(entries) if isinstance(entry, TensorType)}
    for first, row in rows_of(entries):
        for slot, type_ in enumerate(row[0].types, first):
            if type_ is not None:
                found[slot] = type_
    return found


def is_alike(one: Entry, other: Entry) -> bool:
    """Whether both are leaves, further results, or the same operator of the same slots."""
    if isinstance(one, tuple) and isinstance(other, tuple):
        return one[0].name == other[0].name and one[1:] == other[1:]
    return one.__class__ is other.__class__


class OtherDevice(Exception):
    """A value of another device than the trace's stands among the operands."""

    def __init__(self, value: Value) -> None:
        self.value = value


class Writes:
    """Roots that are to hold what consecutive slots of a tape hold, and how many of them do."""

    __slots__ = ("done", "epoch", "slot", "targets", "trace")

    def __init__(self, trace: "Trace", targets: Sequence[Value], slot: int, epoch: int) -> None:
        self.trace = trace
        self.targets = targets
        self.slot = slot
        self.epoch = epoch
        self.done = 0

    def make(self) -> None:
        """Make those that are left; whoever comes in between may do the same."""
        trace, targets, first, epoch = self.trace, self.targets, self.slot, self.epoch
        count = len(targets)
        while True:
            # Nothing comes between these: they neither call nor jump back. (The condition of a
            # `while` is evaluated before the jump.)
            done = self.done
            if done == count:
                return
            target = targets[done]
            target.trace, target.slot, target.generation = (
                trace, first + done, target.generation + 1
            )  # fmt: skip
            target.epoch, target.buffer, self.done = epoch, None, done + 1


class Tape:
    """The rows of one epoch.

    `entries[slot]` is a row, the type of a leaf (a value that has a buffer), or None for a further
    result of the row before it. What a row is fed with stands beside it, so that the entries alone
    are the key of a program: `buffers` of the leaves and the `scalars` of rows, by slot.
    """

    __slots__ = (
        "buffers", "collectives", "counted", "entries", "epoch", "moved", "scalars", "since_s",
        "values", "writes",
    )  # fmt: skip

    def __init__(self) -> None:
        self.epoch = next(_epochs)
        self.entries: list[Entry] = NotedEntries() if Asked.is_noting else []
        self.buffers: dict[int, jax.Array] = {}
        self.scalars: dict[int, tuple[int | float, ...]] = {}
        # The slots of leaves that came from another tape, by the id of their buffer: values that
        # were leaves there do not know of them.
        self.moved: dict[int, int] = {}
        # Where the collectives were recorded, by slot: "file:line".
        self.collectives: dict[int, str] = {}
        # Every value that was given a slot; one that nothing else refers to is dead.
        self.values: list[Value] = []
        # Of several values at once; those that began.
        self.writes: list[Writes] = []
        # How many of the entries the metrics have counted, and since when the others came.
        self.counted = 0
        self.since_s = time.perf_counter()

    def append(self, row: Row, further: tuple[None, ...] = ()) -> int:
        """Append a row and return the slot of its first result; `further` stands for the others."""
        entries = self.entries
        while True:
            slot = len(entries)
            entries += (row, *further)
            # Another row came between: nobody knows of ours at its place, so it is dead there.
            if entries[slot] is row:
                return slot

    def enter(self, type_: TensorType, buffer: jax.Array) -> int:
        """Append a leaf; returns its slot."""
        entries = self.entries
        while True:
            slot = len(entries)
            entries.append(type_)
            # Otherwise another entry came between, and the leaf is dead where it is.
            if len(entries) == slot + 1:
                self.buffers[slot] = buffer
                return slot

    def move_in(self, type_: TensorType, buffer: jax.Array) -> int:
        """The slot of a leaf of another tape, which becomes one of this."""
        slot = self.moved.get(id(buffer))
        if slot is None:
            slot = self.moved[id(buffer)] = self.enter(type_, buffer)
        return slot

    def add_row(
        self, plan: Plan, slots: Sequence[int], scalars: tuple[Any, ...], where: str
    ) -> int:
        """Append the row of a plan with what belongs to it; returns its first slot."""
        slot = self.append((plan, *slots), plan.further)
        if scalars:
            self.scalars[slot] = scalars
        if plan.is_collective:
            self.collectives[slot] = where
        return slot


class Trace:
    """Where one thread records for one device: the only writer of its tape.

    Subclasses say what happens where a value is needed that no buffer holds (`fetch`) and where
    the tape has grown to `limit` slots (`trim`).
    """

    __slots__ = ("device", "is_symbolic", "limit", "lock", "random", "tape")

    def __init__(
        self, device: Device, random: Any, limit: int = sys.maxsize, *, is_symbolic: bool = False
    ) -> None:
        self.device = device
        # Whether it records a function instead of the user's step; then there are no values.
        self.is_symbolic = is_symbolic
        self.random = random
        self.limit = limit
        # Held while a tape runs. Recording takes no lock.
        self.lock = threading.RLock()
        self.tape = Tape()

    @property
    def rows(self) -> list[Row]:
        """The pending rows, in order; for tests."""
        return [row for _, row in rows_of(self.tape.entries)]

    def record(
        self,
        plan: Plan,
        operands: Sequence[Value],
        scalars: tuple[int | float, ...] = (),
        where: str = "",
    ) -> list[Value | None]:
        """Append one row; returns a value for each of its results, None where torch has none.

        Args:
            scalars: the row's runtime scalars, then seed and counter where it is random.
            where: "file:line" of a collective.

        Raises OtherDevice where an operand is not of this device.
        """
        while True:
            if len(self.tape.entries) >= self.limit:
                self.trim()
            tape = self.tape
            slot = tape.add_row(plan, self.slots_of(operands), scalars, where)
            values = self.new_values(plan.types, tape, slot)
            if self.tape is tape:
                return values

    def record_one(self, plan: Plan, operand: Value) -> Value:
        """`record` for a plan of one operand and one result, without its lists."""
        while True:
            if len(self.tape.entries) >= self.limit:
                self.trim()
            tape = self.tape
            is_root = operand.epoch == tape.epoch and operand.parent is None
            slot = tape.append((plan, operand.slot if is_root else self.slot_of(operand)))
            value = self.new_value(plan.types[0], tape, slot)  # type: ignore[arg-type]
            if self.tape is tape:
                return value

    def slots_of(self, operands: Sequence[Value]) -> list[int]:
        """`slot_of` each, without its frame for a root that is on the tape."""
        epoch, slot_of = self.tape.epoch, self.slot_of
        return [v.slot if v.epoch == epoch and v.parent is None else slot_of(v) for v in operands]

    def new_values(
        self, types: Sequence[TensorType | None], tape: Tape, slot: int
    ) -> list[Value | None]:
        """A value for each result of the row at a slot of a tape; None where torch has none."""
        values: list[Value | None] = []
        epoch, listed = tape.epoch, tape.values
        for place, type_ in enumerate(types, slot):
            if type_ is None:
                values.append(None)
                continue
            # `RootValue(...)`, without its frame.
            value = _new(RootValue)
            value.type, value.trace, value.slot = type_, self, place
            value.epoch = value.listed = epoch
            value.buffer, value.generation, value.parent = None, 0, None
            listed.append(value)
            values.append(value)
        return values

    def new_value(self, type_: TensorType, tape: Tape, slot: int) -> Value:
        """A value that is pending at a slot of a tape."""
        value = RootValue(type_, self, slot, tape.epoch)
        tape.values.append(value)
        return value

    def write(self, target: Value, source: Value) -> None:
        """Make `target`, a root, hold what `source` holds."""
        while True:
            tape, buffer = self.tape, source.buffer
            if buffer is not None:
                target.epoch, target.buffer, target.generation = 0, buffer, target.generation + 1
                return
            slot = self.slot_of(source)
            self.list_value(target, tape)
            if self.tape is tape:
                # Nothing comes between these: `target` may be pending in another trace. (Four
                # targets in one statement would make a tuple, and so collect garbage.)
                target.trace, target.slot, target.generation = self, slot, target.generation + 1
                target.epoch, target.buffer = tape.epoch, None
                return

    def record_into(
        self,
        plan: Plan,
        operands: Sequence[Value],
        scalars: tuple[int | float, ...],
        targets: Sequence[Value],
    ) -> list[Value | None]:
        """Append one row whose last results become what `targets`, roots of this device, hold.

        Not for a symbolic trace, where each is a `write`: a root from outside is not moved there.
        Whoever runs the tape meanwhile makes the writes that are left (`finish_writes`).

        Returns a value for each result before those, None where torch has none.
        """
        fresh = len(plan.types) - len(targets)
        while True:
            if len(self.tape.entries) >= self.limit:
                self.trim()
            tape = self.tape
            slot = tape.add_row(plan, self.slots_of(operands), scalars, "")
            epoch = tape.epoch
            for target in targets:
                if target.listed != epoch:
                    tape.values.append(target)
                    target.listed = epoch
            values = self.new_values(plan.types[:fresh], tape, slot) if fresh else []
            writes = Writes(self, targets, slot + fresh, epoch)
            try:
                tape.writes.append(writes)
                # If the tape was run before it knew of the writes, nobody made them.
                if self.tape is tape or writes not in tape.writes:
                    writes.make()
                    return values
            finally:
                if writes in tape.writes:
                    tape.writes.remove(writes)

    @staticmethod
    def finish_writes(tape: Tape) -> None:
        """Make the writes that others began on a tape, which is about to run."""
        while tape.writes:
            tape.writes.pop().make()

    @staticmethod
    def list_value(value: Value, tape: Tape) -> None:
        """Enter a value into a tape's list, where it is not yet."""
        if value.listed != tape.epoch:
            tape.values.append(value)
            value.listed = tape.epoch

    def slot_of(self, value: Value) -> int:
        """The slot of a value on the present tape.

        A root that is not on it becomes a leaf; how a view reads its parent is recorded.
        """
        if value.parent is not None:
            view: ViewValue = value  # type: ignore[assignment]
            is_read = view.epoch == self.tape.epoch and view.seen == view.root.generation
            return view.slot if is_read else self.read_view(view)
        while True:
            tape = self.tape
            if value.epoch == tape.epoch:
                return value.slot
            if value.trace.device is not self.device:
                raise OtherDevice(value)
            buffer = value.buffer
            if buffer is None:
                buffer = value.trace.fetch(value)
            slot = tape.moved.get(id(buffer)) if tape.moved else None
            if slot is None:
                # `tape.enter`, without its frame.
                entries = tape.entries
                slot = len(entries)
                entries.append(value.type)
                if len(entries) != slot + 1:
                    continue
                tape.buffers[slot] = buffer
            if self.tape is tape and value.buffer is buffer:
                value.slot, value.epoch = slot, tape.epoch
                return slot

    def read_view(self, view: ViewValue) -> int:
        """Record the step that reads a view from its parent."""
        if view.reader is not None:
            return view.reader(self)
        root, parent = view.root, view.parent
        while True:
            tape, seen = self.tape, root.generation
            row = view.step, self.slot_of(parent)  # type: ignore[arg-type]
            # `append`, without its frame.
            entries = tape.entries
            slot = len(entries)
            entries.append(row)
            if entries[slot] is row and self.tape is tape and root.generation == seen:
                view.slot, view.seen, view.epoch = slot, seen, tape.epoch
                return slot

    def note(self, tensors: Any) -> None:
        """Tensors are about to be read by a row; a symbolic trace asks which need gradients."""

    def snapshot(self, value: Value) -> Value:
        """A value that stays what `value` is now, whatever is written to that later."""
        while True:
            tape = self.tape
            if value.buffer is not None:
                copy = Value(value.type, self)
                copy.buffer = value.buffer
                return copy
            copy = self.new_value(value.type, tape, self.slot_of(value))
            if self.tape is tape:
                return copy

    def keep_view(self, view: ViewValue, source: Value) -> None:
        """Remember that a view, which was just written, reads as `source`."""
        tape, seen = self.tape, view.root.generation
        slot = self.slot_of(source)
        if self.tape is tape and view.root.generation == seen:
            view.slot, view.seen, view.epoch = slot, seen, tape.epoch

    def fetch(self, value: Value) -> jax.Array:
        """The buffer of a root that is pending here, for another trace or the host."""
        raise NotImplementedError

    def trim(self) -> None:
        """The tape has `limit` slots: empty it, or raise that."""
        raise NotImplementedError
