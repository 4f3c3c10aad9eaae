"""Rows of our own: any JAX function of device tensors, recorded like an operator.

Collectives, control flow, whole optimizer updates and users' kernels are such rows.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax

from torch_xdist.core.bind import bind
from torch_xdist.core.callers import user_line
from torch_xdist.core.plan import LIST, Plan, Slot
from torch_xdist.core.record import mixed_devices, not_on_device
from torch_xdist.core.tensor import XlaTensor, wrap
from torch_xdist.core.trace import Trace, dense_kind
from torch_xdist.core.views import slot_of
from torch_xdist.dtypes import to_jax, to_torch
from torch_xdist.errors import DeviceError

_PLANS: dict[Hashable, Plan] = {}


def own_row(
    name: str,
    lowering: Callable[..., Any],
    tensors: Sequence[XlaTensor],
    key: Hashable = (),
    *,
    collective: bool = False,
    trace: Trace | None = None,
) -> list[XlaTensor]:
    """Record `lowering(*arrays)`, a function of one array per tensor that returns one or several.

    Args:
      key: with `name` and the tensors' kinds it must determine what `lowering` computes: the
        first function recorded under a key serves every later call.
      collective: the row exchanges data with other ranks.
      trace: where to record when there are no tensors.

    Returns a list with one tensor per result; shapes and dtypes are those JAX infers.
    """
    target = trace_of(name, tensors) if trace is None else trace
    plan = plan_of(name, lowering, tensors, key, collective=collective)
    slots = [slot_of(t.cell) for t in tensors]
    if collective:
        target.collectives += 1
        target.places[target.next_slot] = user_line()
    target.rows.append((plan, *slots))
    return [wrap(target.new_cell(kind)) for kind in plan.kinds]  # type: ignore[arg-type]


def trace_of(name: str, tensors: Sequence[XlaTensor]) -> Trace:
    """The one trace of these tensors. Raises DeviceError for CPU tensors and mixed devices."""
    for tensor in tensors:
        if tensor.__class__ is not XlaTensor:
            raise DeviceError(f"{name}: {not_on_device(tensor)}")
    trace = tensors[0].cell.trace
    for tensor in tensors:
        if tensor.cell.trace is not trace:
            raise mixed_devices(name, trace, tensor.cell.trace)
    return trace


def plan_of(
    name: str,
    lowering: Callable[..., Any],
    tensors: Sequence[XlaTensor],
    key: Hashable,
    *,
    collective: bool,
) -> Plan:
    """The plan of an own row, inferred once per key and operand kinds."""
    kinds = [t.cell.kind for t in tensors]
    full_key = (name, key, *kinds)
    plan = _PLANS.get(full_key)
    if plan is None:
        abstract = [jax.ShapeDtypeStruct(k.shape, to_jax(k.dtype)) for k in kinds]
        results = jax.tree.leaves(jax.eval_shape(lowering, *abstract))
        outs = [dense_kind(tuple(r.shape), to_torch(r.dtype)) for r in results]
        marks = [Slot(i) for i in range(len(kinds))]
        plan = bind(Plan(name, None, (*marks, key), {}, kinds, outs, LIST), _without_key(lowering))
        plan.is_collective = collective
        _PLANS[full_key] = plan
    return plan


def _without_key(lowering: Callable[..., Any]) -> Callable[..., Any]:
    """The key stands among a plan's arguments, for its description; the function has no use."""

    def call(*arrays_and_key: Any) -> Any:
        return lowering(*arrays_and_key[:-1])

    return call
