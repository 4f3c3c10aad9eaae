"""Views: values that read their parent through one step and write back through its inverse."""

import functools
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from torch_xdist.core.devices.tensor import OtherClassError, XlaTensor, of_other_class, wrap
from torch_xdist.core.run.device_trace import trace_here
from torch_xdist.core.trace.operators import Op, op_of
from torch_xdist.core.trace.plans import PLANS, SINGLE, Param, Plan, jax_plan
from torch_xdist.core.trace.tensor_types import (
    TensorType,
    extent,
    tensor_type,
    type_of_meta,
)
from torch_xdist.core.trace.trace import Trace
from torch_xdist.core.trace.values import Value, ViewValue, root_of
from torch_xdist.dtypes import to_jax
from torch_xdist.errors import NoLoweringError
from torch_xdist.ops.table import LOWERINGS
from torch_xdist.ops.views import INVERSES, Layout, read_strided, write_by_position, write_strided

_plans = PLANS.plans


def make_view(op: Op, args: Sequence[Any], kwargs: dict[str, Any] | None = None) -> XlaTensor:
    """What a view operator returns: a tensor that shares the first argument's storage."""
    value = args[0].value
    if len(args) == 1:
        key: tuple[Any, ...] = (op, value.type)
    elif len(args) == 2:
        static = args[1]
        key = (op, value.type, tuple(static) if static.__class__ is list else static)
    else:
        key = (op, value.type, *[tuple(a) if a.__class__ is list else a for a in args[1:]])
    if kwargs:
        key = (*key, *kwargs.items())
    step: Any = _plans.get(key)
    if step is None:
        try:
            step = PLANS.find(key, lambda: _make_step(op, value.type, args, kwargs or {}))
        except OtherClassError:
            return NotImplemented
    return wrap(ViewValue(step.types[0], value, step))


def _make_step(op: Op, parent: TensorType, args: Sequence[Any], kwargs: dict[str, Any]) -> Plan:
    lowering = LOWERINGS.get(op.name)
    if lowering is None:
        if any(isinstance(a, torch.Tensor) and of_other_class(a) for a in args):
            raise OtherClassError
        raise NoLoweringError(
            f"{op.name}: views of this kind do not exist on xla devices; call .clone() on a CPU"
            " copy, or use indexing, view or as_strided"
        )
    view = type_of_meta(op.func(parent.meta, *args[1:], **kwargs))
    to_jax(view.dtype)  # a dtype that JAX lacks is refused here, not when the trace runs
    static = (Param(0), *args[1:])
    inverse = INVERSES.get(op.name) or functools.partial(write_by_position, lowering)
    return Plan(
        op.name, op, static, dict(kwargs), [parent], [view], SINGLE,
        lowering=lowering, inverse=inverse,
    )  # fmt: skip


def make_as_strided(
    value: Value, size: Sequence[int], stride: Sequence[int], offset: int | None
) -> ViewValue:
    """A view of a storage by strides, whatever views lie between."""
    root = root_of(value)
    if root.type.dtype != value.type.dtype:
        root = _storage_in(value.type.dtype, root)
    layout = Layout(tuple(size), tuple(stride), value.type.offset if offset is None else offset)
    key = ("as_strided", root.type, layout)
    step = PLANS.find(key, lambda: _make_strided_step(root.type, layout))
    return ViewValue(step.types[0], root, step)  # type: ignore[arg-type]


def _storage_in(dtype: torch.dtype, root: Value) -> Value:
    """A storage as one dim of numbers of another dtype: its bits, as many as make whole ones."""
    width = max(dtype.itemsize // root.type.dtype.itemsize, 1)
    flat = make_as_strided(root, (extent(root.type) // width * width,), (1,), 0)
    return make_view(op_of("aten.view.dtype"), (wrap(flat), dtype)).value


def _make_strided_step(root: TensorType, layout: Layout) -> Plan:
    root.meta.as_strided(*layout)  # torch's own errors
    out = tensor_type(layout.size, root.dtype, layout.stride, layout.offset)
    if extent(out) > extent(root):
        width = root.dtype.itemsize
        raise RuntimeError(
            f"setStorage: sizes {list(layout.size)}, strides {list(layout.stride)}, storage offset"
            f" {layout.offset}, and itemsize {width} requiring a storage size of"
            f" {extent(out) * width} are out of bounds for storage of size {extent(root) * width}"
        )
    owner = Layout(root.shape, root.stride, 0)
    return jax_plan(
        f"aten.as_strided{tuple(layout)}",
        functools.partial(read_strided, owner=owner, layout=layout),
        [root],
        [out],
        inverse=functools.partial(write_strided, owner=owner, layout=layout),
    )


def write(target: Value, source: Value) -> None:
    """Make `source` the value of `target`, through every view down to the storage."""
    trace = trace_here(target.trace.device)
    if isinstance(target, ViewValue):
        _write_through(trace, target, source)
    else:
        trace.write(target, source)


def _write_through(trace: Trace, view: ViewValue, source: Value) -> None:
    parent = view.parent
    assert parent is not None
    if isinstance(parent, ViewValue) and parent.type.shares_places:
        # All of the parent, written back, would bring back what lies at the same places.
        type_ = view.type
        write(make_as_strided(view, type_.shape, type_.stride, type_.offset), source)
        return
    plan = PLANS.find(("inverse", view.step), lambda: _inverse_of(view.step))
    (written,) = trace.record(plan, [parent, source])
    assert written is not None
    write(parent, written)
    if not view.type.shares_places:
        trace.keep_view(view, source)


def _inverse_of(step: Plan) -> Plan:
    parent, view = step.operand_types[0], step.types[0]
    assert view is not None and step.inverse is not None
    name = f"write.{step.name}"
    return jax_plan(name, step.inverse, [parent, view], [parent], *step.args[1:], **step.kwargs)


def split_views(x: XlaTensor, sizes: Sequence[int], dim: int, slice_op: Op) -> list[XlaTensor]:
    """Consecutive slices of `x` along `dim`."""
    starts = np.cumsum([0, *sizes]).tolist()
    return [make_view(slice_op, (x, dim, a, b)) for a, b in itertools.pairwise(starts)]
