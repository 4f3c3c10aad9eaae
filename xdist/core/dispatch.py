"""Where every torch operator on a device tensor arrives.

`dispatch` records a functional operator without leaving its frame; views, writes and the few
operators with a meaning of their own go to handlers. Measure every change with
scripts/bench_steps.py.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from torch_xdist.core import cuts, fallback, mask_counts, special, writes
from torch_xdist.core.plan import LIST, SINGLE, TUPLE, Op, Plan
from torch_xdist.core.record import NEW, PLANS, STATIC_INTS, Found, find, make_plan
from torch_xdist.core.tensor import AUTOCAST_KEYS, LAZY_DEVICES, XlaTensor, wrap
from torch_xdist.core.torch_generator import drawn_from
from torch_xdist.core.trace import Cell, Trace
from torch_xdist.core.views import make_view, slot_of, write
from torch_xdist.errors import NoLoweringError
from torch_xdist.ops.refused import REFUSED
from torch_xdist.ops.table import LOWERINGS

_make = torch.Tensor._make_wrapper_subclass
_STRIDED = torch.strided
_META_DEVICE = torch.device("meta")
_WHOLE = (int, bool)
_NO_KWARGS: dict[str, Any] = {}


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
    key, slots, values = [op], [], args
    numbers = trace = None
    if kwargs:
        key.extend(kwargs)
        values = (*args, *kwargs.values())
    else:
        kwargs = _NO_KWARGS
    for a in values:
        cls = a.__class__
        if cls is XlaTensor:
            cell = a.cell
            if trace is None:
                trace = cell.trace
                epoch = trace.epoch
            elif cell.trace is not trace:
                return op.general(op, args, kwargs)
            key.append(cell.kind)
            now = cell.epoch == epoch and (cell.parent is None or cell.seen == cell.root.generation)
            slots.append(cell.slot if now else slot_of(cell))
        elif cls is int:
            if op.runtime and a not in STATIC_INTS:
                return op.general(op, args, kwargs)
            key.append(a)
        elif cls is float and op.runtime:
            key.append(float)
            numbers = [a] if numbers is None else [*numbers, a]
        elif cls is float:
            key.append((float, a.hex()))
        elif a is None or cls is bool:
            key.append((cls, a))
        elif cls is list and a and a[0].__class__ in _WHOLE:
            key.append((None, *a))
        else:
            return op.general(op, args, kwargs)
    key = tuple(key)  # type: ignore[assignment]
    plan = PLANS.get(key, NEW)  # type: ignore[call-overload]
    if plan is NEW:
        plan = PLANS[key] = make_plan(op, args, kwargs)  # type: ignore[index]
    if plan is None or trace is None or not plan.is_plain:
        return op.general(op, args, kwargs)
    if trace.next_slot > trace.limit:
        cuts.cut(trace, cuts.LIMIT)
        return dispatch(func, types, args, kwargs)
    if numbers is not None:
        trace.floats.extend(numbers)
    trace.rows.append((plan, *slots))
    if plan.structure != SINGLE:
        return pack(plan, result_cells(plan, trace))
    slot = trace.next_slot
    trace.next_slot = slot + 1
    if op.in_place:
        write(args[0].cell, slot)
        return args[0]
    kind = plan.kinds[0]
    cell = Cell(kind, trace, slot, epoch)
    trace.listed.append(cell)
    tensor = _make(
        XlaTensor, kind.shape, kind.wrap_stride, None, None, kind.dtype, _STRIDED,
        LAZY_DEVICES[trace.device_index], False, False, None, False, False, AUTOCAST_KEYS,
    )  # fmt: skip
    tensor.cell = cell
    return tensor


def record(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """The general path: any arguments, any number of results."""
    found, plan = find(op, args, kwargs)
    if plan is None:
        return fallback.run(op, args, kwargs)
    return pack(plan, enter(plan, found))


def enter(plan: Plan, found: Found) -> list[Cell | None]:
    """Append a row and return a cell for each of its results."""
    trace = found.trace
    if trace is None:
        raise TypeError(f"{plan.name}: no xla tensor among its operands")
    for number in found.numbers:
        (trace.floats if number.__class__ is float else trace.ints).append(number)
    if plan.is_random:
        generator = found.generator
        trace.ints.extend(trace.rng.next() if generator is None else drawn_from(generator))
    trace.rows.append((plan, *found.slots))
    return result_cells(plan, trace)


def result_cells(plan: Plan, trace: Trace) -> list[Cell | None]:
    """A cell for each result of the row that was just appended; None where torch has none."""
    cells: list[Cell | None] = []
    for kind in plan.kinds:
        if kind is None:
            trace.next_slot += 1
            cells.append(None)
        else:
            cells.append(trace.new_cell(kind))
    return cells


def pack(plan: Plan, cells: Sequence[Cell | None]) -> Any:
    """The results as the operator returns them."""
    tensors = [None if cell is None else wrap(cell) for cell in cells]
    if plan.structure == SINGLE:
        return tensors[0]
    if plan.structure == LIST:
        return tensors
    return tuple(tensors) if plan.structure == TUPLE else None


def write_handler(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """In-place and out= forms: record the functional form, then move the written cells."""
    if op.out_names:
        outs = writes.out_tensors(op, args, kwargs)
        rest = {name: value for name, value in kwargs.items() if name not in op.out_names}
    else:
        outs, rest = writes.mutated_tensors(op, args, kwargs), kwargs
    writes.check_targets(op, outs)
    if op.is_factory:
        rest = {**rest, "dtype": outs[0].cell.kind.dtype, "device": _META_DEVICE}
    found, plan = find(op, args, rest)
    if found.trace is None:
        found.trace = outs[0].cell.trace
    if plan is None:
        return fallback.run(op, args, kwargs)
    cells = enter(plan, found)
    return writes.finish(op, cells, outs, is_out=bool(op.out_names))


def bernoulli_(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Torch leaves out a `p` of one half, for which the functional form has no default."""
    if len(args) == 1 and "p" not in kwargs:
        args = (*args, 0.5)
    return write_handler(op, args, kwargs)


def index_put(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """A mask may select another number of elements than there are values."""
    mask_counts.check(args, kwargs)
    return (write_handler if op.mutated else record)(op, args, kwargs)


special.HANDLERS["aten.bernoulli_.float"] = bernoulli_
for _name in ("index_put.default", "index_put_.default", "index_put.out"):
    special.HANDLERS[f"aten.{_name}"] = index_put


def composite_handler(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """An operator torch makes of others: it arrives whole only below autograd."""
    return op.func.decompose(*args, **kwargs)


def refuse(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    raise NoLoweringError(f"{op.name}: {REFUSED[op.name]}")


def learn(func: Any) -> Op:
    """Work out once how calls of an overload are handled."""
    op = Op(func)
    op.general = record
    handler: Callable[..., Any] | None = special.HANDLERS.get(op.name)
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
    func._xdist = op
    return op


def register() -> None:
    """Let every operator on a device tensor arrive here."""
    XlaTensor.__torch_dispatch__ = staticmethod(dispatch)  # type: ignore[method-assign]
