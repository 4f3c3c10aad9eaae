"""Rows of our own: any JAX function of device tensors, recorded like an operator.

Collectives, control flow, fused composites, optimizer updates and users' kernels are such rows.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax

from torch_xdist.core.devices.device import choices
from torch_xdist.core.devices.tensor import XlaTensor, wrap
from torch_xdist.core.kept.known_plans import KNOWN, key_of
from torch_xdist.core.record.arguments import mixed_devices, not_on_device
from torch_xdist.core.run.device_trace import trace_here
from torch_xdist.core.trace.plans import LIST, PLANS, Param, Plan, ScalarParam
from torch_xdist.core.trace.tensor_types import TensorType, dense_type
from torch_xdist.core.trace.trace import Trace
from torch_xdist.core.trace.user_frames import user_line
from torch_xdist.dtypes import to_jax, to_torch
from torch_xdist.errors import CutError, DeviceError

# Called after a row that does not arrive in dispatch.py; eager mode runs it at once.
AFTER_ROW: list[Callable[[], None]] = []
_ABSTRACT = {float: jax.ShapeDtypeStruct((), "float64"), int: jax.ShapeDtypeStruct((), "int64")}


def record_jax(
    name: str,
    lowering: Callable[..., Any],
    tensors: Sequence[XlaTensor],
    key: Hashable = (),
    *,
    scalars: Sequence[int | float] = (),
    collective: bool = False,
) -> list[XlaTensor]:
    """Record `lowering(*arrays, *scalars)`, which returns one array or several.

    Args:
      lowering: it must hold no tensor: it lives as long as programs that compute it.
      tensors: one array each; at least one.
      key: with `name` and the tensors' types it must determine what `lowering` computes: the
        first function recorded under a key serves every later call.
      scalars: numbers that are inputs of the program: others at the next call make no new one.
      collective: the row exchanges data with other ranks.

    Returns a list with one tensor per result; shapes and dtypes are those JAX infers. Raises
    CutError for a collective in a body of control flow.
    """
    trace = trace_among(name, tensors)
    if collective and trace.is_symbolic:
        raise CutError(
            f"{name}: a collective in a body of control flow, which every rank may run another"
            " number of times; call it outside of the body"
        )
    trace.note(tensors)
    scalar_types = tuple(number.__class__ for number in scalars)
    plan = jax_op(name, lowering, tensors, key, scalar_types, collective=collective)
    where = user_line() if collective else ""
    values = trace.record(plan, [t.value for t in tensors], tuple(scalars), where)
    results = [wrap(value) for value in values]  # type: ignore[arg-type]
    after_row()
    return results


def after_row() -> None:
    """A row was recorded, and its results are the caller's."""
    for call in AFTER_ROW:
        call()


def trace_among(name: str, tensors: Sequence[XlaTensor]) -> Trace:
    """Where an operator on these tensors is recorded.

    Raises DeviceError for CPU tensors and mixed devices.
    """
    for tensor in tensors:
        if tensor.__class__ is not XlaTensor:
            raise DeviceError(f"{name}: {not_on_device(tensor)}")
    trace = trace_here(tensors[0].value.trace.device)
    for tensor in tensors:
        if tensor.value.trace.device is not trace.device:
            raise mixed_devices(name, trace, tensor.value.trace)
    return trace


def jax_op(
    name: str,
    lowering: Callable[..., Any],
    tensors: Sequence[XlaTensor],
    key: Hashable,
    scalars: tuple[type, ...] = (),
    *,
    collective: bool = False,
) -> Plan:
    """The plan of a row of our own, inferred once per key and operand types."""
    types = [t.value.type for t in tensors]

    def make() -> Plan:
        made_of = key_of(name, choices().name, (lowering, key, scalars, types))
        known = KNOWN.find(made_of)
        outs = _inferred(lowering, types, scalars) if known is None else known[0]
        if known is None:
            KNOWN.keep(made_of, outs, LIST)
        args = (*(Param(i) for i in range(len(types))), *map(ScalarParam, scalars), key)
        return Plan(
            name, None, args, {}, types, outs, LIST,
            lowering=_without_key(lowering), is_collective=collective,
        )  # fmt: skip

    return PLANS.find((name, key, scalars, *types), make)


def _inferred(
    lowering: Callable[..., Any], types: Sequence[TensorType], scalars: Sequence[type]
) -> list[TensorType]:
    """The types of what a JAX function returns."""
    abstract = [jax.ShapeDtypeStruct(t.shape, to_jax(t.dtype)) for t in types]
    results = jax.eval_shape(lowering, *abstract, *(_ABSTRACT[cls] for cls in scalars))
    return [dense_type(tuple(r.shape), to_torch(r.dtype)) for r in jax.tree.leaves(results)]


def _without_key(lowering: Callable[..., Any]) -> Callable[..., Any]:
    """The key stands among a plan's arguments, for its description; the function has no use."""

    def call(*arrays_and_key: Any) -> Any:
        return lowering(*arrays_and_key[:-1])

    return call
