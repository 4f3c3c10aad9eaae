"""Binding a lowering to a plan: static arguments put in, results fitted to torch's kinds."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from torch_xdist.core.plan import SINGLE, Number, Plan, Slot, flat
from torch_xdist.core.trace import Kind
from torch_xdist.dtypes import to_jax

Recipe = Callable[[Sequence[jax.Array], Sequence[Any], Any], list[Any]]


def own_plan(
    name: str,
    lowering: Callable[..., Any],
    operand_kinds: Sequence[Kind],
    kinds: Sequence[Kind],
    *static: Any,
    **named: Any,
) -> Plan:
    """A plan of our own: `lowering(*operands, *static, **named)`, without promotion."""
    args = (*(Slot(i) for i in range(len(operand_kinds))), *static)
    return bind(Plan(name, None, args, named, operand_kinds, kinds, SINGLE), lowering)


def bind(plan: Plan, lowering: Callable[..., Any]) -> Plan:
    """Give a plan a lowering that takes its operands as they are."""
    plan.lowering = lowering

    def recipe(operands: Sequence[jax.Array], numbers: Sequence[Any], key: Any) -> list[Any]:
        scalars = iter(numbers)
        args = [fill(mark, operands, scalars) for mark in plan.args]
        named = {name: fill(mark, operands, scalars) for name, mark in plan.kwargs.items()}
        return fit(plan, lowering(*args, **named))

    plan.recipe = recipe
    return plan


def fill(mark: Any, operands: Sequence[jax.Array], scalars: Iterator[Any]) -> Any:
    if isinstance(mark, Slot):
        return operands[mark.index]
    if isinstance(mark, Number):
        return next(scalars)
    if isinstance(mark, tuple | list):
        return type(mark)(fill(part, operands, scalars) for part in mark)
    return mark


def fit(plan: Plan, result: Any) -> list[Any]:
    """What a lowering returned, flat, in the dtypes torch says; shapes must already be right."""
    values = list(flat(result))
    if len(values) != len(plan.kinds):
        raise TypeError(
            f"{plan.name}: its lowering gave {len(values)} results, not {len(plan.kinds)}"
        )
    return [_fit_one(plan, i, x, kind) for i, (x, kind) in enumerate(zip(values, plan.kinds))]


def _fit_one(plan: Plan, index: int, value: Any, kind: Kind | None) -> Any:
    if kind is None:
        return jnp.zeros(())
    if value is None:
        value = jnp.zeros(kind.shape)
    value = jnp.asarray(value)
    if value.shape != kind.shape:
        raise TypeError(
            f"{plan.name}: result {index} of its lowering has shape {value.shape}, "
            f"torch says {kind.shape}"
        )
    dtype = to_jax(kind.dtype)
    if value.dtype == dtype:
        return value
    if value.dtype.kind == "c" and dtype.kind != "c":
        value = value.real
    return value.astype(dtype)
