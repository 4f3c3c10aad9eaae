"""Rows that read, write or fill a part of an array, as rows whose place is a number.

Where a slice begins is a constant of its plan: an argument, or what torch says of where it lies in
its storage. Such a row is told apart here into its place and all else, and made again with a place
that the program is fed with; so are views of what is read, whose plans know the place too.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from torch_xdist.core.trace.plans import PLANS, SINGLE, Param, Plan, ScalarParam
from torch_xdist.core.trace.tensor_types import TensorType

_WRITE = "write."
_READS = frozenset({"aten.slice.Tensor", "aten.select.int"})
_SCATTERS = frozenset({"aten.slice_scatter.default", "aten.select_scatter.default"})
_BACKWARDS = frozenset({"aten.slice_backward.default", "aten.select_backward.default"})
# Views of slices; torch tells where each begins in its storage, so they are others for each place.
_FOLLOWING = frozenset(
    f"aten.{name}"
    for name in "t.default transpose.int permute.default unsqueeze.default squeeze.dim"
    " squeeze.dims squeeze.default view.default expand.default alias.default".split()
)


class Form(NamedTuple):
    """What a row does to a part of an array, wherever that is.

    Attributes:
        kind: "read", "write" into a copy of the array, or "fill" zeros of `shape` with it.
        size, step: how many elements along `dim`, and how far apart.
        has_dim: whether the part has the dim, or is one element along it without.
    """

    kind: str
    dim: int
    size: int
    step: int
    has_dim: bool
    shape: tuple[int, ...] = ()


class Placed(NamedTuple):
    """A row's place along its dim, and what it does there."""

    begin: int
    form: Form


def placed(plan: Plan) -> Placed | None:
    """The place of a plan's part; None for other plans, and for parts of no elements."""
    if plan.op is None and not plan.name.startswith(_WRITE):
        return None
    base = plan.name.removeprefix(_WRITE)
    if base not in _READS | _SCATTERS | _BACKWARDS or plan.kwargs or plan.types[0] is None:
        return None
    count = len(plan.operand_types)
    static = plan.args[count:]
    if any(not isinstance(part, int | None) for part in static[base in _BACKWARDS :]):
        return None
    if base in _BACKWARDS:
        return _of_arguments(base, "fill", tuple(static[0]), static[1:])
    kind = "read" if plan.name in _READS else "write"
    return _of_arguments(base, kind, plan.operand_types[0].shape, static)


def _of_arguments(
    name: str, kind: str, shape: tuple[int, ...], static: Sequence[Any]
) -> Placed | None:
    """Of a call's arguments after its tensors: dim, start, end, step; or dim, index."""
    dim = (static[0] if static else 0) % len(shape)
    size = shape[dim]
    of_fill = shape if kind == "fill" else ()
    if ".select" in name:
        return Placed(static[1] % size, Form(kind, dim, 1, 1, has_dim=False, shape=of_fill))
    given = list(static[1:])
    start, end, step = given + [None, None, 1][len(given) :]
    found = range(size)[slice(start, end, step)]
    if not found:
        return None
    form = Form(kind, dim, len(found), found.step, has_dim=True, shape=of_fill)
    return Placed(found.start, form)


def follows(plan: Plan) -> bool:
    """Whether a plan computes the same wherever in its storage its operand lies."""
    base = plan.name.removeprefix(_WRITE)
    return base in _FOLLOWING and plan.lowering is not None and len(plan.types) == 1


def anywhere(plan: Plan) -> Plan:
    """A plan that computes what one that `follows` does, for operands that lie anywhere."""
    operands, out = _types(plan)
    static = plan.args[len(operands) :]
    named = tuple(sorted(plan.kwargs.items()))
    key = "anywhere", plan.name, repr((static, named)), operands, out
    lowering: Any = plan.lowering

    def make() -> Plan:
        args = (*map(Param, range(len(operands))), *static)
        return Plan(plan.name, None, args, plan.kwargs, operands, [out], SINGLE, lowering=lowering)

    return PLANS.find(key, make)


def with_number(plan: Plan, form: Form) -> Plan:
    """A plan that does the same where a number says, its one runtime scalar."""
    operands, out = _types(plan)
    compute = functools.partial(_KINDS[form.kind], form)

    def make() -> Plan:
        args = (*map(Param, range(len(operands))), ScalarParam(int))
        return Plan(
            f"placed.{form.kind}", None, args, {}, operands, [out], SINGLE, lowering=compute
        )

    return PLANS.find(("placed", form, operands, out), make)


def _types(plan: Plan) -> tuple[tuple[TensorType, ...], TensorType]:
    """Of the operands and of the result, at the beginnings of their storages."""
    out = plan.types[0]
    assert out is not None
    return tuple([t.at_zero or t for t in plan.operand_types]), out.at_zero or out


def read(form: Form, whole: jax.Array, begin: jax.Array) -> jax.Array:
    """The part of an array that begins there."""
    reach = (form.size - 1) * form.step + 1
    part = jax.lax.dynamic_slice_in_dim(whole, begin, reach, form.dim)
    part = jax.lax.slice_in_dim(part, 0, reach, form.step, form.dim)
    return part if form.has_dim else jax.lax.squeeze(part, (form.dim,))


def _written(form: Form, whole: jax.Array, part: jax.Array, begin: jax.Array) -> jax.Array:
    part = part.astype(whole.dtype)
    part = part if form.has_dim else jnp.expand_dims(part, form.dim)
    if form.step > 1:
        reach = (form.size - 1) * form.step + 1
        rest = jax.lax.dynamic_slice_in_dim(whole, begin, reach, form.dim)
        at = (*[slice(None)] * form.dim, slice(None, None, form.step))
        part = rest.at[at].set(part)
    return jax.lax.dynamic_update_slice_in_dim(whole, part, begin, form.dim)


def _filled(form: Form, part: jax.Array, begin: jax.Array) -> jax.Array:
    return _written(form, jnp.zeros(form.shape, part.dtype), part, begin)


_KINDS: dict[str, Callable[..., jax.Array]] = {"read": read, "write": _written, "fill": _filled}
