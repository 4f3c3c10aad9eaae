"""How a plan is computed: its row of the lowering table, or torch's decomposition of it.

`try_lowering` tries it on abstract arrays when the plan is made, so a lowering that does not fit is
noticed at the user's line, where the CPU can still serve.
"""

import logging
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
import torch
from torch._C import DispatchKey, _dispatch_has_kernel_for_dispatch_key
from torch._decomp import global_decomposition_table
from torch._ops import OpOverload

from torch_xdist.core.record import symbolic_trace
from torch_xdist.core.record.promote import SELECTORS, computation_dtype, is_no_less_in_halves
from torch_xdist.core.trace.plans import Compute, CpuOnly, Param, Plan, ScalarParam, fill, fit
from torch_xdist.core.trace.tensor_types import TensorType
from torch_xdist.dtypes import to_jax
from torch_xdist.ops import forms, keys, load_all
from torch_xdist.ops.operands import promoted
from torch_xdist.ops.table import LOWERINGS, RANDOM, STRIDED

load_all()
# Rows of others than this package's modules are not what its source says.
_ORIGINALS = dict(LOWERINGS)
# Stands for a row of the table of the plan's name.
_TABLE = "row of the table"
_log = logging.getLogger(__name__)
_STAND_INS = {float: 1.5, int: 3}
_ABSTRACT_SCALARS = {
    float: jax.ShapeDtypeStruct((), np.float64),
    int: jax.ShapeDtypeStruct((), np.int64),
}
# How many calls of a kind are tried: a row of the table refuses none for its sizes.
_TRIED = 3
# Numbers from here on are taken for sizes, of which one is as another.
_SIZE = 8
_times: Counter[Hashable] = Counter()
# Of several results in several dtypes: each is given the numbers as they are.
_OF_LISTS = ("aten._foreach_", "aten._fused_")


def is_original(name: str) -> bool:
    """Whether an operator's row of the table, or that it has none, is what the source says."""
    return LOWERINGS.get(name) is _ORIGINALS.get(name)


def try_lowering(plan: Plan, *, is_known: bool = False) -> CpuOnly | None:
    """Give a plan what computes it; returns what stands in its place where nothing does.

    Args:
        is_known: it was tried before, and something does (`known_plans`).
    """
    plan.compute = _of_lowering(plan)
    is_ours = plan.compute is not None
    if plan.compute is None:
        plan.compute = _of_decomposition(plan, is_known=is_known)
    if plan.compute is None:
        return CpuOnly()
    kind = _kind(plan) if is_ours and is_original(plan.name) else None
    if is_known or _times[kind] >= _TRIED:
        return None
    found = _tried(plan, is_ours=is_ours)
    if found is None and kind is not None:
        _times[kind] += 1
    return found


def _kind(plan: Plan) -> Hashable:
    """What calls have in common that differ in sizes and numbers alone, but for small ones."""
    types = [(t.dtype, *(min(size, 2) for size in t.shape)) for t in plan.operand_types]
    return plan.name, tuple(types), _without_numbers((plan.args, tuple(plan.kwargs.items())))


def _without_numbers(mark: Any) -> Any:
    if isinstance(mark, tuple | list):
        return tuple(map(_without_numbers, mark))
    if isinstance(mark, int) and mark.__class__ is not bool:
        # Dims, groups and sizes of kernels are small.
        return min(mark, _SIZE)
    return float if isinstance(mark, float) else repr(mark)


def _tried(plan: Plan, *, is_ours: bool) -> CpuOnly | None:
    assert plan.compute is not None
    scalars = [_ABSTRACT_SCALARS[type_] for type_ in plan.scalar_types]
    operands = _abstract(plan.operand_types)
    try:
        with np.errstate(over="ignore"):
            jax.eval_shape(plan.compute, operands, scalars, _key(plan))
    except NotImplementedError as error:
        _log.debug("%r is not served: %s", plan, error)
    except Exception as error:
        _log.debug("%r cannot be lowered: %s: %s", plan, type(error).__name__, error)
        return CpuOnly(error if is_ours else None)
    else:
        return None
    return CpuOnly()


def _abstract(types: Sequence[TensorType]) -> list[jax.ShapeDtypeStruct]:
    return [jax.ShapeDtypeStruct(type_.shape, to_jax(type_.dtype)) for type_ in types]


def _key(plan: Plan) -> Any:
    return jax.eval_shape(lambda: keys.folded(0, 0)) if plan.is_random else None


def _of_lowering(plan: Plan) -> Compute | None:
    lowering = LOWERINGS.get(plan.name)
    if lowering is None:
        return None
    if plan.name in STRIDED:
        contiguous = tuple(type_.meta.is_contiguous() for type_ in plan.operand_types)
        lowering = partial(lowering, contiguous=contiguous)
    return ByLowering(plan, lowering)


class ByLowering:
    """Computes a plan by its row of the table: operands and numbers arrive promoted."""

    __slots__ = ("__weakref__", "_dtypes", "_lowering", "_plan")

    def __init__(self, plan: Plan, lowering: Callable[..., Any]) -> None:
        self._plan = plan
        self._lowering = lowering
        # Found when it is first computed, which a program that is found on disk never is.
        self._dtypes: _Dtypes | None = None

    def told(self) -> Any:
        """What says, with the plan, how it is computed: this package's source, or the function."""
        return _TABLE if is_original(self._plan.name) else self._lowering

    def __call__(
        self, operands: Sequence[jax.Array], scalars: Sequence[Any], key: Any
    ) -> list[Any]:
        plan = self._plan
        if self._dtypes is None:
            self._dtypes = _dtypes_of(plan)
        dtype, of_numbers, selected, is_no_less = self._dtypes
        if dtype is not None and not (is_no_less and forms.chosen().keeps_halves):
            operands = [x if i in selected else promoted(x, dtype) for i, x in enumerate(operands)]
        given = iter(scalars if of_numbers is None else [n.astype(of_numbers) for n in scalars])
        args = [fill(mark, operands, given) for mark in plan.args]
        kwargs = {name: fill(mark, operands, given) for name, mark in plan.kwargs.items()}
        if plan.name in RANDOM:
            args = [key, *args]
        return fit(plan, self._lowering(*args, **kwargs))


class _Dtypes(NamedTuple):
    """In which dtypes a row computes.

    Attributes:
        of_operands, of_numbers: None: in their own.
        selected: operands that choose between others, and keep theirs.
        is_no_less: it is the same in the halves that the operands are.
    """

    of_operands: np.dtype | None
    of_numbers: np.dtype | None
    selected: frozenset[int]
    is_no_less: bool


def _dtypes_of(plan: Plan) -> _Dtypes:
    dtype = _pointwise_dtype(plan) if plan.op is not None and plan.op.is_pointwise else None
    of_numbers = None if plan.name.startswith(_OF_LISTS) else dtype or _number_dtype(plan)
    selected = _selected_operands(plan) if dtype is not None else frozenset()
    return _Dtypes(dtype, of_numbers, selected, dtype is not None and _is_no_less(plan, selected))


def _is_no_less(plan: Plan, selected: frozenset[int]) -> bool:
    out = plan.types[0]
    operands = [k.dtype for i, k in enumerate(plan.operand_types) if i not in selected]
    marks = [*plan.args, *plan.kwargs.values()]
    numbers = [mark for mark in marks if not isinstance(mark, Param)]
    return out is not None and is_no_less_in_halves(plan.name, operands, numbers, out.dtype)


def _pointwise_dtype(plan: Plan) -> np.dtype | None:
    types = [k for i, k in enumerate(plan.operand_types) if i not in _selected_operands(plan)]
    out = plan.types[0]
    if not types or out is None:
        return to_jax(out.dtype) if out is not None and out.dtype is not torch.bool else None
    scalars = [
        _STAND_INS[m.type] if isinstance(m, ScalarParam) else m
        for m in plan.args
        if isinstance(m, ScalarParam | int | float | complex)
    ]
    return to_jax(computation_dtype([k.meta for k in types], scalars, out.dtype, plan.name))


def _selected_operands(plan: Plan) -> frozenset[int]:
    """Operands that choose between others, by their schema names."""
    assert plan.op is not None
    func = plan.op.functional
    assert func is not None
    named = dict(zip((a.name for a in func._schema.arguments), plan.args)) | plan.kwargs
    return frozenset(
        mark.index for name, mark in named.items() if name in SELECTORS and isinstance(mark, Param)
    )


def _number_dtype(plan: Plan) -> np.dtype:
    out = next((k for k in plan.types if k is not None), None)
    if out is None:
        return np.dtype(np.float64)
    half = out.dtype in (torch.float16, torch.bfloat16)
    return np.dtype(np.float32) if half else to_jax(out.dtype)


def _made_of_others(func: OpOverload) -> Callable[..., Any] | None:
    """An operator's own implementation, where that serves every device: it calls other operators.

    That of torch's own may reach for the memory of its operands; those of libraries and of users
    (`torch.library.custom_op`) do not, and what reads a value fails while it is traced.
    """
    if func._can_decompose():
        return func.decompose
    if func.namespace == "aten":
        return None
    # What a library registered for xla comes before what serves every device.
    for key in (DispatchKey.XLA, DispatchKey.CompositeExplicitAutograd):
        if _dispatch_has_kernel_for_dispatch_key(func.name(), key):
            return partial(func._op_dk, key)
    return None


def _of_decomposition(plan: Plan, *, is_known: bool) -> Compute | None:
    func = plan.op.functional if plan.op is not None else None
    if func is None:
        return None
    decompose = global_decomposition_table["post_autograd"].get(func) or _made_of_others(func)
    if decompose is None or plan.scalar_types:
        return None
    found = ByDecomposition(plan, decompose)
    try:
        # What torch makes of an operator of its own, its release says.
        if not (is_known and func.namespace == "aten"):
            found.record()
    except Exception as error:
        _log.debug("%r cannot be decomposed: %s: %s", plan, type(error).__name__, error)
        return None
    return found


class ByDecomposition:
    """Computes a plan by the rows that its decomposition records."""

    __slots__ = ("__weakref__", "_decompose", "_plan", "_subgraph")

    def __init__(self, plan: Plan, decompose: Callable[..., Any]) -> None:
        self._plan = plan
        self._decompose = decompose
        self._subgraph: symbolic_trace.Subgraph | None = None

    def record(self) -> symbolic_trace.Subgraph:
        """The rows, which are recorded the first time."""
        if self._subgraph is None:
            self._subgraph = symbolic_trace.decomposition(self._plan, self._decompose)
        return self._subgraph

    def told(self) -> Any:
        """What says, with the plan, how it is computed: torch's own release, or the rows."""
        assert self._plan.op is not None
        is_torchs = self._plan.op.func.namespace == "aten"
        return self._decompose if is_torchs else self.record()

    def __call__(
        self, operands: Sequence[jax.Array], scalars: Sequence[Any], key: Any
    ) -> list[Any]:
        return fit(self._plan, self.record().compute(operands, key))
