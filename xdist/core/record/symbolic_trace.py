"""Symbolic traces: functions recorded without values, to be computed as part of one row.

Two kinds of functions are recorded so: torch's decomposition of an operator, once per plan, and the
bodies of control flow, once per call. While a function is recorded, its symbolic trace is where the
thread records; so all it does lands there, whatever the operands are. What a body reads from
outside becomes an operand, and what it writes outside a result.
"""

import contextlib
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from torch_xdist.core.alias.writes import mutated_tensors
from torch_xdist.core.devices.tensor import XlaTensor, wrap
from torch_xdist.core.programs.interpreter import ScalarFeed, interpret, scalars_of
from torch_xdist.core.programs.locations import inner_scope
from torch_xdist.core.run.device_trace import HERE
from torch_xdist.core.trace.notes import with_notes_of
from torch_xdist.core.trace.operators import op_of
from torch_xdist.core.trace.plans import Plan, fill, flat
from torch_xdist.core.trace.tensor_types import TensorType, dense_type
from torch_xdist.core.trace.trace import Entry, Trace, rows_of
from torch_xdist.core.trace.values import Device, Value, ViewValue, root_of
from torch_xdist.errors import CutError, DeviceError
from torch_xdist.ops import keys

# Stands beside the type of an operand on the tape of a function.
_OPERAND = "operand"


class _RowNumbers:
    """Numbers the random rows of a function; the key comes from the row the function is part of."""

    def __init__(self) -> None:
        self.count = 0

    def next(self) -> tuple[int, int]:
        self.count += 1
        return 0, self.count


class SymbolicTrace(Trace):
    """Where a function is recorded.

    Attributes:
        captured: for each value from outside, its slot as an operand; None where the function
            may read nothing from outside.
        written: for each root from outside that was written, the value it has now.
        tensors: those from outside that need gradients, by their ids.
    """

    __slots__ = ("_outer_views", "captured", "tensors", "written")

    def __init__(self, device: Device, *, may_capture: bool) -> None:
        super().__init__(device, _RowNumbers(), is_symbolic=True)
        self.captured: dict[Value, int] | None = {} if may_capture else None
        self.written: dict[Value, Value] = {}
        self.tensors: dict[int, torch.Tensor] = {}
        # Views of values from outside: the slot they read as, and after how many writes.
        self._outer_views: dict[ViewValue, tuple[int, int]] = {}

    def is_own(self, value: Value) -> bool:
        """Whether a value was made by this function."""
        return root_of(value).trace is self

    def slot_of(self, value: Value) -> int:
        """The slot of a value here; one from outside becomes an operand."""
        if self.is_own(value):
            is_of_host = value.parent is None and value.buffer is not None
            if is_of_host and self.captured is not None and value.epoch != self.tape.epoch:
                return self._operand_of_host(value)
            return super().slot_of(value)
        if value.trace.device is not self.device:
            raise DeviceError(
                f"a body recorded for {self.device} reads a tensor {value.type!r} of"
                f" {value.trace.device}; move it with .to() before"
            )
        if not isinstance(value, ViewValue) or value.reader is not None:
            now = self.written.get(value)
            return self._operand(value) if now is None else self.slot_of(now)
        return self._slot_of_outer_view(value)

    def slots_of(self, operands: Sequence[Value]) -> list[int]:
        """`slot_of` each."""
        return [self.slot_of(value) for value in operands]

    def note(self, tensors: Iterable[Any]) -> None:
        """Remember which tensors from outside need gradients."""
        for tensor in tensors:
            is_ours = tensor.__class__ is XlaTensor and tensor.requires_grad
            if is_ours and not self.is_own(tensor.value):
                self.tensors.setdefault(id(tensor), tensor)

    def _operand(self, value: Value) -> int:
        if self.captured is None:
            if value.buffer is not None:
                return self.tape.enter(value.type, value.buffer)
            raise CutError(
                f"a decomposition reads a tensor {value.type!r} that is none of its operands"
            )
        slot = self.captured.get(value)
        if slot is None:
            slot = self.captured[value] = self.tape.append((value.type, _OPERAND))
        return slot

    def _operand_of_host(self, value: Value) -> int:
        """What a body made of data of the host is an operand: the next call may make it of other.

        The operand is a copy of it, because the body may write to it.
        """
        assert self.captured is not None
        tape, copy = self.tape, Value(value.type, self)
        copy.buffer = value.buffer
        value.slot = self.captured[copy] = tape.append((value.type, _OPERAND))
        value.epoch = tape.epoch
        return value.slot

    def _slot_of_outer_view(self, view: ViewValue) -> int:
        seen = self._writes(view.root)
        slot, when = self._outer_views.get(view, (-1, -1))
        if when != seen:
            slot = self.tape.append((view.step, self.slot_of(view.parent)))  # type: ignore[arg-type]
            self._outer_views[view] = slot, seen
        return slot

    def _writes(self, root: Value) -> int:
        """How often a root from outside was written here."""
        now = self.written.get(root)
        return 0 if now is None else now.generation

    def write(self, target: Value, source: Value) -> None:
        """Make a root hold what `source` holds; one from outside only within this function."""
        if self.is_own(target):
            super().write(target, source)
            return
        if self.captured is None:
            raise CutError(
                f"a decomposition writes a tensor {target.type!r} that is none of its operands"
            )
        self._operand(target)
        now = self.written.get(target)
        if now is None:
            now = self.written[target] = Value(target.type, self)
        super().write(now, source)

    def keep_view(self, view: ViewValue, source: Value) -> None:
        """Nothing to remember of a view from outside: the next read records how it reads."""
        if view.root.trace is self:
            super().keep_view(view, source)

    def fetch(self, value: Value) -> jax.Array:
        """Raise: a value of a function has no buffer."""
        raise CutError(
            f"a tensor {value.type!r} was made while a function was recorded (a body of control"
            " flow, a decomposition) and is used outside of it; return it from the function"
        )


@dataclass(frozen=True, slots=True)
class Subgraph:
    """A recorded function: its rows, where its operands stand, and the slots of its results.

    `constants` are the leaves a decomposition made itself.
    """

    entries: tuple[Entry, ...]
    operands: tuple[int, ...]
    outs: tuple[int | None, ...]
    constants: tuple[tuple[int, jax.Array], ...]
    floats: tuple[float, ...]
    ints: tuple[int, ...]

    @property
    def key(self) -> Hashable:
        """What it computes, given its operands and its scalars."""
        return self.entries, self.operands, self.outs

    @property
    def scalars(self) -> tuple[int | float, ...]:
        """Its runtime scalars, as `compute` takes them."""
        return (*self.floats, *self.ints)

    @property
    def is_random(self) -> bool:
        """Whether it draws random numbers."""
        return any(row[0].is_random for _, row in rows_of(self.entries))

    def compute(
        self, operands: Sequence[jax.Array], key: Any, scalars: Sequence[Any] | None = None
    ) -> list[Any]:
        """The results as JAX arrays; the scalars are those recorded, or the given ones."""
        env: dict[int, Any] = dict(zip(self.operands, operands))
        env.update(self.constants)
        given = list(map(np.asarray, self.scalars)) if scalars is None else scalars
        count = len(self.floats)
        feed = _KeyedScalars(given[:count], given[count:], key)
        interpret(self.entries, env, feed, inner_scope(self.entries))
        return [None if slot is None else env[slot] for slot in self.outs]


class _KeyedScalars(ScalarFeed):
    """The scalars of a function; its keys are folded from the key of the whole row."""

    def __init__(self, floats: Any, ints: Any, key: Any) -> None:
        super().__init__(floats, ints)
        # Of a function that draws nothing there is none.
        self.outer: Any = None if key is None else keys.own(key)

    def key(self) -> jax.Array:
        # The seed is a generator's that the function was given; 0 without one.
        seed = self.take(int)
        return jax.random.fold_in(jax.random.fold_in(self.outer, seed), self.take(int))


@contextlib.contextmanager
def recording(trace: SymbolicTrace) -> Iterator[None]:
    """Let this thread record into a symbolic trace."""
    before = HERE.trace, HERE.symbolic
    HERE.trace = HERE.symbolic = trace
    try:
        yield
    finally:
        HERE.trace, HERE.symbolic = before


def recorded(
    device: Device, types: Sequence[TensorType], function: Callable[..., Any]
) -> tuple[SymbolicTrace, list[int], Any]:
    """What a function of tensors of these types does, without gradients.

    Returns its trace, the slots of its operands there, and what it returned.
    """
    trace = SymbolicTrace(device, may_capture=True)
    operands = [_operand_of(trace, type_) for type_ in types]
    slots = [value.slot for value in operands]
    with recording(trace), torch.no_grad():
        return trace, slots, function(*map(wrap, operands))


def decomposition(plan: Plan, decompose: Callable[..., Any]) -> Subgraph:
    """What torch's decomposition does to tensors of a plan's operand types."""
    trace = SymbolicTrace(HERE.trace.device, may_capture=False)
    operands = [_operand_of(trace, type_) for type_ in plan.operand_types]
    slots = [value.slot for value in operands]
    tensors = [wrap(value) for value in operands]
    args = [fill(mark, tensors, iter(())) for mark in plan.args]
    kwargs = {name: fill(mark, tensors, iter(())) for name, mark in plan.kwargs.items()}
    with recording(trace), torch.no_grad():
        result = decompose(*args, **kwargs)
        outs = [_out_slot(trace, x) for x in flat(result)]
    # Its lines are those of whoever called it first; each row has its own.
    found = _subgraph(trace, slots, outs)
    return replace(found, entries=tuple(found.entries))


def _operand_of(trace: SymbolicTrace, type_: TensorType) -> Value:
    return trace.new_value(type_, trace.tape, trace.tape.append((type_, _OPERAND)))


def _out_slot(trace: SymbolicTrace, value: Any) -> int | None:
    if value is None:
        return None
    if not isinstance(value, XlaTensor):
        raise TypeError(f"a recorded function returned {type(value).__name__}, not an xla tensor")
    return trace.slot_of(value.value)


def _subgraph(
    trace: SymbolicTrace, operands: Sequence[int], outs: Sequence[int | None]
) -> Subgraph:
    tape = trace.tape
    floats, ints = scalars_of(tape, tape.entries)
    constants = tuple(sorted(tape.buffers.items(), key=lambda item: item[0]))
    entries = with_notes_of(tape.entries, tape.entries)
    return Subgraph(entries, tuple(operands), tuple(outs), constants, tuple(floats), tuple(ints))


class _Watch(TorchDispatchMode):
    """Tells a symbolic trace which tensors the operators of a function read and write."""

    def __init__(self, trace: SymbolicTrace, where: str) -> None:
        super().__init__()
        self.trace = trace
        self.where = where

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if HERE.symbolic is not self.trace:  # a function inside this one
            return func(*args, **kwargs)
        leaves = pytree.tree_leaves((args, kwargs))
        self.trace.note(leaves)
        if func._schema.is_mutable and torch.is_grad_enabled():
            self._check_write(func, args, kwargs, leaves)
        return func(*args, **kwargs)

    def _check_write(self, func: Any, args: Any, kwargs: Any, leaves: Sequence[Any]) -> None:
        """Refuse what would make a tensor from outside depend on the function's own tensors."""
        for target in mutated_tensors(op_of(func), args, kwargs):
            is_outer = target.__class__ is XlaTensor and not self.trace.is_own(target.value)
            if is_outer and any(getattr(leaf, "requires_grad", False) for leaf in leaves):
                raise CutError(
                    f"{self.where}: {func} writes to a tensor {target.value.type!r} from outside"
                    " while gradients are recorded; return the value from the function instead, or"
                    " write under torch.no_grad()"
                )


class TracedFunction:
    """A function of tensors, recorded.

    Attributes:
        subgraph: its operands are those of the function, then the captured values; its results
            those of the function, then the values of the written roots.
        captured: what it reads from outside.
        written: the roots it writes outside, which are among the captured.
        tensors: those from outside that need gradients.
        result_types: of its own results.
        needs_grad: whether each of its own results depends on what needs gradients.
    """

    def __init__(
        self,
        where: str,
        function: Callable[..., Any],
        like: Sequence[torch.Tensor],
        needs_grad: Sequence[bool],
        *,
        as_leaves: bool = False,
    ) -> None:
        """Record `function` of tensors like these, which need gradients where it says so.

        With `as_leaves` those are leaves, which torch lets nobody write in place.
        """
        device = like[0].value.trace.device  # type: ignore[attr-defined]
        trace = SymbolicTrace(device, may_capture=True)
        types = [t.value.type for t in like]  # type: ignore[attr-defined]
        values = [_operand_of(trace, dense_type(t.shape, t.dtype)) for t in types]
        # Now: a write moves a value to another slot.
        slots = [value.slot for value in values]
        with recording(trace), torch.enable_grad():
            # A copy, because a leaf that needs gradients could not be written in place.
            inputs = [
                (
                    wrap(value).requires_grad_()
                    if as_leaves
                    else wrap(value).requires_grad_().clone()
                )
                if need
                else wrap(value)
                for value, need in zip(values, needs_grad)
            ]
            with _Watch(trace, where):
                result = function(*inputs)
            leaves = pytree.tree_leaves(result)
            outs = [_out_slot(trace, x) for x in leaves]
            outs += [trace.slot_of(now) for now in trace.written.values()]
        assert trace.captured is not None
        self.captured = list(trace.captured)
        self.written = list(trace.written)
        self.tensors = list(trace.tensors.values())
        self.result_types = [leaf.value.type for leaf in leaves]
        self.needs_grad = [leaf.requires_grad for leaf in leaves]
        operands = [*slots, *trace.captured.values()]
        self.subgraph = _subgraph(trace, operands, outs)
        # They are not in its key.
        assert not self.subgraph.constants
