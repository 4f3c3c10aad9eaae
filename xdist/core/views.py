"""Views: a cell that reads its parent through one step and writes back through its inverse."""

import functools
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from torch_xdist.core.bind import bind, own_plan
from torch_xdist.core.plan import SINGLE, Op, Plan, Slot
from torch_xdist.core.tensor import XlaTensor, wrap
from torch_xdist.core.trace import Cell, Kind, View, contiguous_strides, kind_of, kind_of_meta
from torch_xdist.dtypes import to_jax
from torch_xdist.errors import DeviceError
from torch_xdist.ops.table import LOWERINGS
from torch_xdist.ops.views import INVERSES, storage_positions, write_by_position

_STEPS: dict[tuple[Any, ...], Plan] = {}
_INVERSES: dict[Plan, Plan] = {}


def slot_of(cell: Cell) -> int:
    """The slot of a cell's value in its trace's present epoch, entering a leaf where needed."""
    trace = cell.trace
    if isinstance(cell, View):
        if cell.epoch == trace.epoch and cell.seen == cell.root.generation:
            return cell.slot
        return read(cell, slot_of(cell.parent))  # type: ignore[arg-type]
    if cell.epoch == trace.epoch:
        return cell.slot
    if cell.buffer is None:
        raise DeviceError(
            f"xla:{trace.device_index}: a tensor {cell.kind} has lost its value: the program "
            "that should have made it failed; see the first error"
        )
    return trace.enter_leaf(cell)


def read(view: View, parent_slot: int) -> int:
    """Record the step that reads `view` from its parent; returns the slot of its value."""
    if view.reader is not None:
        return view.reader()
    trace = view.trace
    trace.rows.append((view.step, parent_slot))
    slot = trace.next_slot
    trace.next_slot = slot + 1
    view.slot = slot
    view.epoch = trace.epoch
    view.seen = view.root.generation
    return slot


def make_view(op: Op, args: Sequence[Any], kwargs: dict[str, Any] | None = None) -> XlaTensor:
    """What a view operator returns: a tensor that shares the first argument's storage."""
    cell = args[0].cell
    if len(args) == 1:
        key: tuple[Any, ...] = (op, cell.kind)
    elif len(args) == 2:
        static = args[1]
        key = (op, cell.kind, tuple(static) if static.__class__ is list else static)
    else:
        key = (op, cell.kind, *[tuple(a) if a.__class__ is list else a for a in args[1:]])
    if kwargs:
        key = (*key, *kwargs.items())
    step = _STEPS.get(key)
    if step is None:
        step = _STEPS[key] = _make_step(op, cell.kind, args, kwargs or {})
    return wrap(View(step.kinds[0], cell, step))  # type: ignore[arg-type]


def _make_step(op: Op, kind: Kind, args: Sequence[Any], kwargs: dict[str, Any]) -> Plan:
    meta = op.func(kind.meta, *args[1:], **kwargs)
    kind_out = kind_of_meta(meta)
    to_jax(kind_out.dtype)  # a dtype that JAX lacks is refused here, not when the trace runs
    plan = Plan(op.name, op, (Slot(0), *args[1:]), dict(kwargs), [kind], [kind_out], SINGLE)
    return bind(plan, LOWERINGS[op.name])


def storage_root(cell: Cell) -> Cell:
    """The cell that owns the storage a cell looks into."""
    return cell.root if isinstance(cell, View) else cell


def make_as_strided(
    cell: Cell, size: Sequence[int], stride: Sequence[int], offset: int | None
) -> View:
    """A view of a storage by strides, whatever views lie between."""
    root = storage_root(cell)
    if offset is None:
        offset = cell.kind.offset
    key = ("as_strided", root.kind, tuple(size), tuple(stride), offset)
    step = _STEPS.get(key)
    if step is None:
        step = _STEPS[key] = _make_strided_step(root.kind, tuple(size), tuple(stride), offset)
    return View(step.kinds[0], root, step)  # type: ignore[arg-type]


def _make_strided_step(
    kind: Kind, size: tuple[int, ...], stride: tuple[int, ...], offset: int
) -> Plan:
    kind.meta.as_strided(size, stride, offset)  # torch's own errors
    out = kind_of(size, kind.dtype, stride, offset)
    positions = _positions_in(kind, storage_positions(size, stride, offset))
    return own_plan(
        f"aten.as_strided{size, stride, offset}",
        lambda self: self.reshape(-1)[positions],
        [kind],
        [out],
    )


def _positions_in(kind: Kind, storage: np.ndarray) -> np.ndarray:
    """Positions in a storage as positions in the row-major array of the tensor that owns it."""
    if kind.stride == contiguous_strides(kind.shape):
        return storage
    owned = storage_positions(kind.shape, kind.stride, 0).reshape(-1)
    back = np.zeros(int(owned.max()) + 1 if owned.size else 0, dtype=np.int64)
    back[owned] = np.arange(owned.size)
    return back[storage]


def write(cell: Cell, slot: int) -> None:
    """Make `slot` the value of a cell, through every view down to the storage."""
    if cell.parent is not None:
        _write_through(cell, slot)  # type: ignore[arg-type]
        return
    trace = cell.trace
    cell.slot = slot
    cell.epoch = trace.epoch
    cell.buffer = None
    cell.generation += 1
    if cell.listed != trace.epoch:
        cell.listed = trace.epoch
        trace.listed.append(cell)


def _write_through(view: View, slot: int) -> None:
    parent = view.parent
    assert parent is not None
    trace = view.trace
    trace.rows.append((_inverse_of(view.step), slot_of(parent), slot))
    written = trace.next_slot
    trace.next_slot = written + 1
    write(parent, written)
    view.slot = slot
    view.epoch = trace.epoch
    view.seen = view.root.generation


def _inverse_of(step: Plan) -> Plan:
    inverse = _INVERSES.get(step)
    if inverse is None:
        inverse = _INVERSES[step] = _make_inverse(step)
    return inverse


def _make_inverse(step: Plan) -> Plan:
    parent, view = step.operand_kinds[0], step.kinds[0]
    assert view is not None
    lowering = INVERSES.get(step.name)
    if lowering is None:
        lowering = functools.partial(write_by_position, step.lowering)  # type: ignore[arg-type]
    name = f"write.{step.name}"
    return own_plan(name, lowering, [parent, view], [parent], *step.args[1:], **step.kwargs)


def split_views(x: XlaTensor, sizes: Sequence[int], dim: int, slice_op: Op) -> list[XlaTensor]:
    """Consecutive slices of `x` along `dim`."""
    starts = np.cumsum([0, *sizes]).tolist()
    return [make_view(slice_op, (x, dim, a, b)) for a, b in itertools.pairwise(starts)]


def overlaps(kind: Kind) -> bool:
    """Whether several elements of a layout share memory, as after `expand`."""
    return any(s == 0 and n > 1 for n, s in zip(kind.shape, kind.stride))


@functools.cache
def op_of(name: str) -> Op:
    """The one Op of an overload by its name, such as "aten.slice.Tensor".

    Plans are found by it: another Op would be another plan, and so another program.
    """
    _, packet, overload = name.split(".")
    return Op(getattr(getattr(torch.ops.aten, packet), overload))
