"""Recipes: from a plan to a function of JAX arrays.

A plan's recipe is its row of the lowering table with the static arguments put in, or what torch's
decomposition recorded on paper. `prepare` tries it on abstract arrays when the plan is made, so a
lowering that does not fit is noticed at the user's line, where the CPU can still serve.
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
import torch
from torch._C import DispatchKey, _dispatch_has_kernel_for_dispatch_key
from torch._decomp import global_decomposition_table
from torch._ops import OpOverload

from torch_xdist.core import paper
from torch_xdist.core.bind import Recipe, fill, fit
from torch_xdist.core.plan import Number, Plan, Slot, number_types
from torch_xdist.core.promote import SELECTORS, computation_dtype
from torch_xdist.core.trace import Kind
from torch_xdist.dtypes import to_jax
from torch_xdist.ops import load_all
from torch_xdist.ops.decomps import DECOMPOSED
from torch_xdist.ops.table import LOWERINGS, RANDOM, STRIDED

load_all()
_log = logging.getLogger(__name__)
_STAND_INS = {float: 1.5, int: 3}


def prepare(plan: Plan) -> bool:
    """Give a plan its recipe; False where neither a lowering nor a decomposition serves it."""
    recipe = _of_lowering(plan) or _of_decomposition(plan)
    if recipe is None:
        return False
    plan.recipe = recipe
    try:
        jax.eval_shape(recipe, _abstract(plan.operand_kinds), _abstract_numbers(plan), _key(plan))
    except Exception as error:
        _log.debug("%r cannot be lowered: %s: %s", plan, type(error).__name__, error)
        plan.recipe = None
        return False
    return True


def _abstract(kinds: Sequence[Kind]) -> list[jax.ShapeDtypeStruct]:
    return [jax.ShapeDtypeStruct(kind.shape, to_jax(kind.dtype)) for kind in kinds]


def _abstract_numbers(plan: Plan) -> list[jax.ShapeDtypeStruct]:
    names = {float: np.float64, int: np.int64}
    return [jax.ShapeDtypeStruct((), names[t]) for t in number_types(plan)]


def _key(plan: Plan) -> Any:
    return jax.eval_shape(lambda: jax.random.key(0)) if plan.is_random else None


def _of_lowering(plan: Plan) -> Recipe | None:
    lowering = plan.lowering
    if lowering is None:
        if plan.name in DECOMPOSED:
            return None
        lowering = LOWERINGS.get(plan.name)
    if lowering is None:
        return None
    if plan.lowering is None and plan.name in STRIDED:
        contiguous = tuple(kind.meta.is_contiguous() for kind in plan.operand_kinds)
        lowering = partial(lowering, contiguous=contiguous)
    takes_key = plan.lowering is None and plan.name in RANDOM
    is_pointwise = plan.op is not None and plan.op.is_pointwise and plan.lowering is None
    compute = _pointwise_dtype(plan) if is_pointwise else None
    number_dtype = compute or _number_dtype(plan)
    selected = _selected_operands(plan) if compute is not None else frozenset()

    def recipe(operands: Sequence[jax.Array], numbers: Sequence[Any], key: Any) -> list[Any]:
        if compute is not None:
            operands = [x if i in selected else x.astype(compute) for i, x in enumerate(operands)]
        scalars = iter([n.astype(number_dtype) for n in numbers])
        args = [fill(mark, operands, scalars) for mark in plan.args]
        kwargs = {name: fill(mark, operands, scalars) for name, mark in plan.kwargs.items()}
        return fit(plan, lowering(key, *args, **kwargs) if takes_key else lowering(*args, **kwargs))

    return recipe


def _pointwise_dtype(plan: Plan) -> np.dtype | None:
    kinds = [k for i, k in enumerate(plan.operand_kinds) if i not in _selected_operands(plan)]
    out = plan.kinds[0]
    if not kinds or out is None:
        return to_jax(out.dtype) if out is not None and out.dtype is not torch.bool else None
    scalars = [
        _STAND_INS[m.type] if isinstance(m, Number) else m
        for m in plan.args
        if isinstance(m, Number | int | float | complex)
    ]
    return to_jax(computation_dtype([k.meta for k in kinds], scalars, out.dtype, plan.name))


def _selected_operands(plan: Plan) -> frozenset[int]:
    """Operands that choose between others, by their schema names."""
    assert plan.op is not None
    func = plan.op.functional
    assert func is not None
    named = dict(zip((a.name for a in func._schema.arguments), plan.args)) | plan.kwargs
    return frozenset(
        mark.index for name, mark in named.items() if name in SELECTORS and isinstance(mark, Slot)
    )


def _number_dtype(plan: Plan) -> np.dtype:
    out = next((k for k in plan.kinds if k is not None), None)
    if out is None:
        return np.dtype(np.float64)
    half = out.dtype in (torch.float16, torch.bfloat16)
    return np.dtype(np.float32) if half else to_jax(out.dtype)


def _made_of_others(func: OpOverload) -> Callable[..., Any] | None:
    """An operator's own implementation, where that serves every device: it calls other operators.

    That of torch's own may reach for the memory of its operands; those of libraries and of users
    (`torch.library.custom_op`) do not, and what reads a value fails on paper.
    """
    if func._can_decompose():
        return func.decompose
    key = DispatchKey.CompositeExplicitAutograd
    if func.namespace == "aten" or not _dispatch_has_kernel_for_dispatch_key(func.name(), key):
        return None
    return partial(func._op_dk, key)


def _of_decomposition(plan: Plan) -> Recipe | None:
    func = plan.op.functional if plan.op is not None else None
    if func is None:
        return None
    decompose = global_decomposition_table["post_autograd"].get(func) or _made_of_others(func)
    if decompose is None or number_types(plan):
        return None
    try:
        sheet = paper.record(plan, decompose)
    except Exception as error:
        _log.debug("%r cannot be decomposed: %s: %s", plan, type(error).__name__, error)
        return None

    def recipe(operands: Sequence[jax.Array], numbers: Sequence[Any], key: Any) -> list[Any]:
        return fit(plan, sheet.compute(operands, key))

    return recipe
