"""The trace: what one thread recorded for one device and did not run yet.

A trace has one tape at a time; whoever runs the tape first puts a new one in its place. Recording
is optimistic: an operator reads `trace.tape` once, appends its row to that tape, and commits what
it changed in one statement, guarded by a look whether the tape is still the trace's. If it is not,
it records itself anew. So it does not matter what comes between: Ctrl-C, a finalizer that records
or cuts, another thread that needs a value of this trace. CPython runs none of them inside a
statement of plain attribute stores, because that neither calls nor jumps back.
"""

import itertools
import sys
import threading
from collections.abc import Sequence
from typing import Any

import jax

from torch_xdist.core.trace.plans import Plan
from torch_xdist.core.trace.tensor_types import TensorType
from torch_xdist.core.trace.values import Device, Value, ViewValue

# Of all tapes of all traces: a value's epoch tells the tape.
_epochs = itertools.count(1)
_new = object.__new__

# (plan, slot of each operand ...), or (type,) for a leaf.
Row = tuple[Any, ...]


class OtherDevice(Exception):
    """A value of another device than the trace's stands among the operands."""

    def __init__(self, value: Value) -> None:
        self.value = value


class Tape:
    """The rows of one epoch.

    `entries[slot]` is a row, (type,) for a leaf (a value that has a buffer), or None for a further
    result of the row before it. What a row is fed with stands beside it, so that the entries alone
    are the key of a program: `buffers` of the leaves and the `scalars` of rows, by slot.
    """

    __slots__ = (
        "buffers", "collectives", "entries", "epoch", "leaves", "scalars", "values",
    )  # fmt: skip

    def __init__(self) -> None:
        self.epoch = next(_epochs)
        self.entries: list[Row | None] = []
        self.buffers: dict[int, jax.Array] = {}
        self.scalars: dict[int, tuple[int | float, ...]] = {}
        # The slot of each leaf by the id of its buffer.
        self.leaves: dict[int, int] = {}
        # Where the collectives were recorded, by slot: "file:line".
        self.collectives: dict[int, str] = {}
        # Every value that was given a slot; one that nothing else refers to is dead.
        self.values: list[Value] = []

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
        """The slot of a buffer, which becomes a leaf where it is none yet."""
        slot = self.leaves.get(id(buffer))
        if slot is None:
            # `append`, without its frame.
            entries, row = self.entries, (type_,)
            slot = len(entries)
            entries.append(row)
            while entries[slot] is not row:
                slot += 1
            self.buffers[slot] = buffer
            self.leaves[id(buffer)] = slot
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

    __slots__ = ("device", "limit", "lock", "random", "tape")
    # Whether it records a function instead of the user's step; then there are no values.
    is_symbolic = False

    def __init__(self, device: Device, random: Any, limit: int = sys.maxsize) -> None:
        self.device = device
        self.random = random
        self.limit = limit
        # Held while a tape runs. Recording takes no lock.
        self.lock = threading.RLock()
        self.tape = Tape()

    @property
    def rows(self) -> list[Row]:
        """The pending rows, in order; for reports and tests."""
        entries = [entry for entry in self.tape.entries if entry is not None]
        return [entry for entry in entries if isinstance(entry[0], Plan)]

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
            epoch = tape.epoch
            slots = [
                v.slot if v.epoch == epoch and v.parent is None else self.slot_of(v)
                for v in operands
            ]
            slot = tape.add_row(plan, slots, scalars, where)
            values = self.new_values(plan.types, tape, slot)
            if self.tape is tape:
                return values

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
            # `Value(...)`, without its frame.
            value = _new(Value)
            value.type, value.trace, value.slot = type_, self, place
            value.epoch = value.listed = epoch
            value.buffer, value.generation = None, 0
            listed.append(value)
            values.append(value)
        return values

    def new_value(self, type_: TensorType, tape: Tape, slot: int) -> Value:
        """A value that is pending at a slot of a tape."""
        value = Value(type_, self, slot, tape.epoch)
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
                # One statement: `target` may be pending in another trace.
                target.trace, target.slot, target.generation, target.epoch, target.buffer = (
                    self, slot, target.generation + 1, tape.epoch, None
                )  # fmt: skip
                return

    def write_all(self, targets: Sequence[Value], sources: Sequence[Value]) -> None:
        """`write` of each pair; the sources were recorded just before."""
        tape = self.tape
        epoch = tape.epoch
        for target, source in zip(targets, sources):
            if target.listed != epoch:
                tape.values.append(target)
                target.listed = epoch
            if self.tape is tape and source.epoch == epoch:
                target.trace, target.slot, target.generation, target.epoch, target.buffer = (
                    self, source.slot, target.generation + 1, epoch, None
                )  # fmt: skip
            else:
                self.write(target, source)

    @staticmethod
    def list_value(value: Value, tape: Tape) -> None:
        """Enter a value into a tape's list, where it is not yet."""
        if value.listed != tape.epoch:
            tape.values.append(value)
            value.listed = tape.epoch

    def slot_of(self, value: Value) -> int:
        """The slot of a value on the present tape; records how a view reads its parent."""
        epoch = self.tape.epoch
        if isinstance(value, ViewValue):
            if value.epoch == epoch and value.seen == value.root.generation:
                return value.slot
            return self.read_view(value)
        return value.slot if value.epoch == epoch else self.enter(value)

    def enter(self, value: Value) -> int:
        """Make a root that is not on this tape a leaf of it."""
        while True:
            tape = self.tape
            if value.trace.device is not self.device:
                raise OtherDevice(value)
            buffer = value.buffer
            if buffer is None:
                buffer = value.trace.fetch(value)
            slot = tape.enter(value.type, buffer)
            if self.tape is tape and value.buffer is buffer:
                value.slot, value.epoch = slot, tape.epoch
                return slot

    def read_view(self, view: ViewValue) -> int:
        """Record the step that reads a view from its parent."""
        if view.reader is not None:
            return view.reader(self)
        while True:
            tape = self.tape
            seen = view.root.generation
            slot = tape.append((view.step, self.slot_of(view.parent)))  # type: ignore[arg-type]
            if self.tape is tape and view.root.generation == seen:
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
        """Empty the tape, which has `limit` slots."""
        raise NotImplementedError
