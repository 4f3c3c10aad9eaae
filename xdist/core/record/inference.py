"""Making the plan of a call that was never seen: the types of its results, and how to compute it.

The types come from torch's own meta kernels, so a wrong call raises torch's own error at the user's
line.
"""

import contextlib
from collections.abc import Sequence
from typing import Any

import torch

from torch_xdist.core.devices.device import choices, holds
from torch_xdist.core.devices.tensor import XlaTensor
from torch_xdist.core.kept.known_plans import KNOWN, key_of
from torch_xdist.core.record import abstract_results, cpu_only, lowering
from torch_xdist.core.record.lowering import is_original
from torch_xdist.core.trace.operators import Op
from torch_xdist.core.trace.plans import (
    GENERAL,
    LIST,
    NOTHING,
    RESULT,
    RESULTS,
    SINGLE,
    TUPLE,
    WRITE,
    CpuOnly,
    Param,
    Plan,
    ScalarParam,
)
from torch_xdist.core.trace.tensor_types import (
    TensorType,
    dense_type,
    overlaps,
    tensor_type,
    type_of_meta,
)
from torch_xdist.ops import number_ranges
from torch_xdist.ops.table import SHAPED

# Integers that are cheap to compile in and common as constants; others are runtime inputs.
SMALL_INTS = frozenset((-2, -1, 0, 1, 2))
# The same, unless a switch of torch_xla's emptied it; changed in place.
STATIC_INTS = set(SMALL_INTS)
# Called from Python, an overload takes True for the integer 1, which promotes a bool tensor. torch
# itself does not, and of those CPU torch has for bools this alone shows it.
_POWER = torch.ops.aten.pow.Tensor_Scalar
# Products that torch_xla took of two dtypes, and whose meta kernels refuse or promote them.
_PRODUCTS = frozenset(getattr(torch.ops.aten, name).default for name in ("bmm", "linear", "mv"))


def is_input(value: Any, cls: type) -> bool:
    """Whether a number may be an input of the program, instead of a constant in it."""
    return cls is float or (cls is int and value not in STATIC_INTS and -(2**63) <= value < 2**63)


def make_plan(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> Plan | CpuOnly:
    """Infer a call's results, and find out how to compute them."""
    func = op.functional
    if func is None or str(func) in choices().on_cpu:
        return CpuOnly()
    template = _Template(op)
    params = [template.param(a, op.runtime) for a in args]
    named = {name: template.param(a, op.runtime) for name, a in kwargs.items()}
    key = _key(op, params, named, template.types)
    known = KNOWN.find(key)
    types, structure = known or _inferred(func, args, kwargs)
    if isinstance(types, CpuOnly):
        return types
    if not all(type_ is None or holds(type_.dtype) for type_ in types):
        return CpuOnly()
    plan = Plan(str(func), op, params, named, template.types, types, structure)
    plan.is_random = torch.Tag.nondeterministic_seeded in func.tags
    plan.follows_default_dtype = _follows_default_dtype(plan)
    plan.path = _path(plan, op)
    check_numbers(plan, [*args, *kwargs.values()], args, kwargs)
    instead = lowering.try_lowering(plan, is_known=known is not None)
    if instead is None and known is None:
        KNOWN.keep(key, types, structure)
    return instead or plan


def check_numbers(
    plan: Plan, numbers: Sequence[Any], args: Sequence[Any], kwargs: dict[str, Any]
) -> None:
    """Raise torch's own error for a number among these that the operator cannot convert."""
    result = plan.types[0] if plan.types else None
    if plan.numbers_fit or plan.op is None or result is None:
        return
    if number_ranges.fit(numbers, result.dtype):
        return
    named = {name: _meta(a) for name, a in kwargs.items()}
    metas = [_meta(a) for a in args]
    cpu_only.refuse_numbers(plan.op.functional, metas, named, result.dtype)
    plan.numbers_fit = True


def _key(op: Op, params: list[Any], named: dict[str, Any], types: list[TensorType]) -> str:
    """Under what earlier runs kept the plan of a call; "" for none: what users' functions say."""
    if op.func.namespace != "aten" or not is_original(str(op.functional)):
        return ""
    return key_of(op.name, choices().name, (params, named, types))


def _inferred(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Any, int]:
    """The types of a call's results and their structure; a CpuOnly and 0 where none are known."""
    metas = [_meta(a) for a in args]
    named = {name: _meta(a) for name, a in kwargs.items()}
    if cpu_only.is_wanted(func, metas):
        return CpuOnly(), 0
    try:
        result = cpu_only.refused(func, metas, named)
        if result is not None:
            return types_of_results(result)
        if str(func) in SHAPED:
            check(func, metas, named)
            result = abstract_results.of_lowering(str(func), metas, named)
        else:
            result = infer(func, metas, named)
    except cpu_only.NoKernelError:
        raise
    except NotImplementedError:
        return CpuOnly(), 0
    except abstract_results.LoweringError as error:
        return CpuOnly(error.__cause__), 0  # type: ignore[arg-type]
    return types_of_results(result)


def _path(plan: Plan, op: Op) -> int:
    """How dispatch.py may record it."""
    if plan.is_random or plan.follows_default_dtype or _may_not_fit(plan):
        return GENERAL
    if op.in_place:
        return WRITE if _overwrites(plan) else GENERAL
    if plan.structure == SINGLE:
        return RESULT
    return RESULTS if plan.types else GENERAL


def _may_not_fit(plan: Plan) -> bool:
    """Whether its results are whole numbers, of floats that dispatch.py does not look at."""
    return float in plan.scalar_types and any(
        t is not None and number_ranges.is_exact(t.dtype) and t.dtype != torch.bool
        for t in plan.types
    )


def _follows_default_dtype(plan: Plan) -> bool:
    """Whether torch's default dtype may count: for a result that is floating point, or to compare
    with a number that is, where no operand is; in a list, each operand counts by itself."""
    exact = [number_ranges.is_exact(t.dtype) for t in plan.operand_types]
    if plan.name.startswith("aten._foreach_"):
        return any(exact)
    numbers = [m.type if isinstance(m, ScalarParam) else m.__class__ for m in plan.args]
    is_inexact = any(t is not None and not number_ranges.is_exact(t.dtype) for t in plan.types)
    return all(exact) and (is_inexact or float in numbers)


def _overwrites(plan: Plan) -> bool:
    """Whether the result can take the place of the first operand as it is."""
    if plan.structure != SINGLE or not plan.operand_types or plan.types[0] is None:
        return False
    result, target = plan.types[0], plan.operand_types[0]
    return result.shape == target.shape and result.dtype == target.dtype and not overlaps(target)


def infer(func: Any, metas: Sequence[Any], named: dict[str, Any]) -> Any:
    """What torch's meta kernel says of the results.

    Raises torch's own error for a wrong call, and NotImplementedError where only values tell.
    """
    if func is _POWER and metas[1].__class__ is bool:
        return torch.empty_like(metas[0])
    if func in _PRODUCTS:
        metas = [None if meta is None else meta.to(metas[0].dtype) for meta in metas]
    try:
        with torch.no_grad():
            return func(*metas, **named)
    except NotImplementedError:
        raise
    except Exception as error:
        # Meta kernels written in Python have words of their own, which the CPU's stand for.
        result = cpu_only.ask(func, metas, named)
        if "meta" in str(error).lower():
            raise NotImplementedError(str(error)) from error
        # A mistake of the kernel's own.
        if result is not None and isinstance(error, TypeError):
            return result
        raise


def check(func: Any, metas: Sequence[Any], named: dict[str, Any]) -> None:
    """Raise torch's own error for a wrong call of an operator whose lowering tells its results."""
    try:
        func(*metas, **named)
    except NotImplementedError:
        return
    except Exception:
        with contextlib.suppress(NotImplementedError):
            cpu_only.ask(func, metas, named)


def types_of_results(result: Any) -> tuple[list[TensorType | None], int]:
    """The types of what a meta kernel returned, and the structure they are handed back in."""
    if isinstance(result, torch.Tensor):
        return [_type_of_result(result)], SINGLE
    if isinstance(result, tuple | list):
        types: list[TensorType | None] = []
        for entry in result:
            for part in entry if isinstance(entry, tuple | list) else [entry]:
                types.append(None if part is None else _type_of_result(part))
        return types, LIST if isinstance(result, list) else TUPLE
    return [], NOTHING


def _type_of_result(meta: torch.Tensor) -> TensorType:
    """The type of a fresh result: dense, at offset 0 of its own storage."""
    if meta.storage_offset():
        return dense_type(tuple(meta.shape), meta.dtype)
    return type_of_meta(meta)


def _meta(value: Any) -> Any:
    """An argument with meta tensors in the places of tensors."""
    if isinstance(value, torch.Tensor):
        return _type_of(value).meta
    if isinstance(value, list | tuple):
        return type(value)(_meta(part) for part in value)
    if isinstance(value, torch.device):
        return torch.device("meta")
    return None if isinstance(value, torch.Generator) else value


def _type_of(value: torch.Tensor) -> TensorType:
    if value.__class__ is XlaTensor:
        return value.value.type  # type: ignore[attr-defined, no-any-return]
    return tensor_type(tuple(value.shape), value.dtype, value.stride())


class _Template:
    """Turns arguments into what a plan keeps of them; `types` are those of its operands."""

    def __init__(self, op: Op) -> None:
        self.op = op
        self.types: list[TensorType] = []

    def param(self, value: Any, is_runtime: bool) -> Any:
        if isinstance(value, torch.Tensor):
            self.types.append(_type_of(value))
            return Param(len(self.types) - 1)
        if isinstance(value, list | tuple):
            return type(value)(self.param(part, self.op.runtime_lists) for part in value)
        if isinstance(value, torch.Generator):
            return None
        cls = value.__class__
        return ScalarParam(cls) if is_runtime and is_input(value, cls) else value
