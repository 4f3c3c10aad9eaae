"""Where every torch operator on a device tensor arrives.

`dispatch` records a functional operator without leaving its frame; views, writes and the few
operators with a meaning of their own go to handlers. Measure every change with
scripts/bench_steps.py.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from torch_xdist.core.alias import writes
from torch_xdist.core.alias.views import make_view, write
from torch_xdist.core.devices.tensor import AUTOCAST_KEYS, OtherClassError, XlaTensor
from torch_xdist.core.devices.torch_generator import drawn_from
from torch_xdist.core.record import cpu_only, fallback
from torch_xdist.core.record.arguments import SIZES, CallArguments, find, plan_of
from torch_xdist.core.record.handlers_copy import SHORTCUTS, is_elsewhere, made_elsewhere
from torch_xdist.core.record.inference import STATIC_INTS
from torch_xdist.core.run.device_trace import HERE, trace_here
from torch_xdist.core.trace.operators import Op, op_of
from torch_xdist.core.trace.plans import (
    GENERAL,
    LIST,
    PLANS,
    RESULTS,
    SINGLE,
    TUPLE,
    WRITE,
    CpuOnly,
    Plan,
)
from torch_xdist.core.trace.trace import OtherDevice, Row, Tape, Trace
from torch_xdist.core.trace.values import RootValue, Value
from torch_xdist.errors import NoLoweringError
from torch_xdist.ops import index_ranges
from torch_xdist.ops.number_ranges import SAFE
from torch_xdist.ops.refused import REFUSED
from torch_xdist.ops.table import LOWERINGS

Handler = Callable[[Op, Sequence[Any], dict[str, Any]], Any]
_make = torch.Tensor._make_wrapper_subclass
_new = object.__new__
_STRIDED = torch.strided
_META_DEVICE = torch.device("meta")
_NO_KWARGS: dict[str, Any] = {}
_known = PLANS.plans.get


def dispatch(
    func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
) -> Any:
    """Record one operator call and return its lazy results."""
    try:
        op = func._xdist
    except AttributeError:
        op = learn(func)
    if op.handler is not None:
        return op.handler(op, args, kwargs or _NO_KWARGS)
    trace = HERE.trace
    epoch = (tape := trace.tape).epoch
    key: Any = [op, *kwargs] if kwargs else [op]
    values = (*args, *kwargs.values()) if kwargs else args
    kwargs = kwargs or _NO_KWARGS
    slots: list[int] = []
    numbers: tuple[float, ...] | None = None
    try:
        for a in values:
            cls = a.__class__
            if cls is XlaTensor:
                value = a.value
                type_: Any = value.type
                key.append(type_.at_zero or type_)  # where in its storage it begins is all one
                is_here = value.epoch == epoch and (
                    value.parent is None or value.seen == value.root.generation
                )
                slots.append(value.slot if is_here else trace.slot_of(value))
            elif cls is int:
                if op.runtime and a not in STATIC_INTS:
                    return op.general(op, args, kwargs)
                key.append(a)
            elif cls is float and not op.runtime:
                key.append((float, a.hex()))
            elif cls is float and -SAFE <= a <= SAFE:
                key.append(float)
                numbers = (a,) if numbers is None else (*numbers, a)
            elif cls is list and a and a[0].__class__ in SIZES:
                key.append((None, *a))
            elif a is None or cls is bool:
                key.append((cls, a))
            else:
                return op.general(op, args, kwargs)
    except OtherDevice:
        return op.general(op, args, kwargs)
    plan: Any = _known(key := tuple(key))
    if plan is None:
        plan = plan_of(key, op, args, kwargs)
    entries, path = tape.entries, plan.path
    slot = len(entries)
    if path is GENERAL or slot >= trace.limit:
        return op.general(op, args, kwargs)
    # What `Trace.record` does, without its frame.
    row = (plan, *slots)
    if path is RESULTS:
        entries += (row, *plan.further)
    else:
        entries.append(row)
    if numbers is not None and entries[slot] is row:
        tape.scalars[slot] = numbers
    if path is WRITE:
        if overwritten(args[0].value, trace, tape, slot, row):
            return args[0]
    else:
        type_ = plan.types[0]
        if path is RESULTS:
            result = pack(plan, trace.new_values(plan.types, tape, slot))
        else:
            value = _new(RootValue)
            value.type, value.trace, value.slot = type_, trace, slot
            value.epoch = value.listed = epoch
            value.buffer, value.generation, value.parent = None, 0, None
            tape.values.append(value)
            result = _make(
                XlaTensor, type_.shape, type_.wrap_stride, None, None, type_.dtype, _STRIDED,
                trace.device.lazy, False, False, None, False, False, AUTOCAST_KEYS,
            )  # fmt: skip
            result.value = value
        if trace.tape is tape and entries[slot] is row:
            return result
    # Somebody recorded or cut meanwhile: see trace.py.
    return dispatch(func, types, args, kwargs)


def overwritten(value: Value, trace: Trace, tape: Tape, slot: int, row: Row) -> bool:
    """Let a value hold the result of the row; False where it does not stand at that slot."""
    if value.parent is not None or trace.is_symbolic:
        result = trace.new_value(row[0].types[0], tape, slot)
        if trace.tape is not tape or tape.entries[slot] is not row:
            return False
        write(value, result)
        return True
    epoch = tape.epoch
    if value.listed != epoch:
        tape.values.append(value)
        value.listed = epoch
    if trace.tape is not tape or tape.entries[slot] is not row:
        return False
    # Nothing comes between these: they neither call nor jump back.
    value.trace, value.slot, value.generation = trace, slot, value.generation + 1
    value.epoch, value.buffer = epoch, None
    return True


def record(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """The general path: any arguments, any number of results."""
    if "device" in kwargs and is_elsewhere(args[0], kwargs["device"]):
        return made_elsewhere(op, args, kwargs)
    if op.shortcut is not None and (found := op.shortcut(op, args, kwargs)) is not None:
        return found
    try:
        call, plan = find(op, args, kwargs)
    except OtherClassError:
        return NotImplemented
    if isinstance(plan, CpuOnly):
        return fallback.run(op, args, kwargs, plan)
    trace = call.trace
    if trace is None:
        raise TypeError(f"{plan.name}: no xla tensor among its operands")
    return pack(plan, trace.record(plan, call.operands, scalars_of(call, plan, trace)))


def scalars_of(call: CallArguments, plan: Plan, trace: Trace) -> tuple[int | float, ...]:
    """What the row of a call is fed with: its runtime scalars; seed and counter if it is random."""
    if not plan.is_random:
        return tuple(call.scalars)
    generator = call.generator
    drawn = trace.random.next() if generator is None else drawn_from(generator)
    return (*call.scalars, *drawn)


def pack(plan: Plan, values: Sequence[Value | None]) -> Any:
    """The results as the operator returns them."""
    tensors: list[XlaTensor | None] = []
    for value in values:
        if value is None:
            tensors.append(None)
            continue
        # `wrap`, without its frame.
        type_ = value.type
        tensor = _make(
            XlaTensor, type_.shape, type_.wrap_stride, type_.offset or None, None, type_.dtype,
            _STRIDED, value.trace.device.lazy, False, False, None, False, False, AUTOCAST_KEYS,
        )  # fmt: skip
        tensor.value = value
        tensors.append(tensor)
    if plan.structure == SINGLE:
        return tensors[0]
    if plan.structure == LIST:
        return tensors
    return tuple(tensors) if plan.structure == TUPLE else None


def write_handler(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """In-place and out= forms: record the functional form, then write what they write."""
    if op.out_names:
        outs = writes.out_tensors(op, args, kwargs)
        rest = {name: value for name, value in kwargs.items() if name not in op.out_names}
    else:
        outs, rest = writes.mutated_tensors(op, args, kwargs), kwargs
    try:
        writes.check_targets(op, outs)
        if op.is_factory:
            rest = {**rest, "dtype": outs[0].value.type.dtype, "device": _META_DEVICE}
        call, plan = find(op, args, rest)
    except OtherClassError:
        return NotImplemented
    if isinstance(plan, CpuOnly):
        return fallback.run(op, args, kwargs, plan)
    trace = call.trace or trace_here(outs[0].value.trace.device)
    scalars = scalars_of(call, plan, trace)
    held = None if op.out_names else writes.alike(plan, trace, outs)
    if held is not None:
        return writes.returned(op, trace.record_into(plan, call.operands, scalars, held), outs)
    values = trace.record(plan, call.operands, scalars)
    return writes.finish(op, values, outs, is_out=bool(op.out_names))


def composite_handler(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """An operator torch makes of others: it arrives whole only below autograd."""
    return op.func.decompose(*args, **kwargs)


def refuse(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    raise NoLoweringError(f"{op.name}: {REFUSED[op.name]}")


class _Checked:
    """An operator before which indices are looked at, in the place of its Op for `dispatch`.

    As a function for `dispatch` it stands for the operator without that.
    """

    __slots__ = ("_xdist", "handler")

    def __init__(self, op: Op, rule: index_ranges.Rule) -> None:
        self._xdist = op
        then = op.handler

        def handler(_: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
            cpu_only.check_indices(op.func, rule, args, kwargs)
            return then(op, args, kwargs) if then is not None else dispatch(self, (), args, kwargs)

        self.handler: Handler = handler


_handlers: dict[str, Handler] = {}


def install(handlers: Mapping[str, Handler]) -> None:
    """Let these handlers answer for the operators of these names, such as "aten.copy_.default".

    Called by what registers the device, before an operator of the name is called.
    """
    _handlers.update(handlers)


def learn(func: Any) -> "Op | _Checked":
    """Work out once how calls of an overload are handled."""
    op = op_of(func)
    op.general = record
    op.shortcut = SHORTCUTS.get(op.name)
    handler: Handler | None = _handlers.get(op.name)
    if op.name in REFUSED:
        handler = refuse
    if handler is None and op.mutated and (op.functional or not func._can_decompose()):
        handler = write_handler
    if handler is None and op.name not in LOWERINGS and func._can_decompose():
        handler = composite_handler
    if handler is None and op.is_view:
        handler = make_view
    if handler is write_handler and op.in_place:
        handler, op.general = None, write_handler
    op.handler = handler
    rule = index_ranges.rule_of(op.name)
    func._xdist = op if rule is None else _Checked(op, rule)
    return func._xdist  # type: ignore[no-any-return]
