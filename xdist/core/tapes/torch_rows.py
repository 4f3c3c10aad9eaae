"""Rows that CPU torch computes on the host, and which those are."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from torch_xdist.core.trace.operators import op_of
from torch_xdist.core.trace.plans import Plan, fill, flat
from torch_xdist.core.trace.tensor_types import TensorType
from torch_xdist.dtypes import nominal, to_jax

# What does not round, though its result may be floating point.
_EXACT = frozenset(
    f"aten.{name}"
    for name in (
        "_to_copy.default abs.default amax.default amin.default cat.default clone.default"
        " fill.Scalar flip.default full_like.default gather.default index_select.default"
        " max.default maximum.default min.default minimum.default neg.default new_full.default"
        " new_ones.default new_zeros.default ones_like.default repeat.default roll.default"
        " sort.default sort.stable stack.default where.self zeros_like.default"
    ).split()
)
# What several results are right for: equal numbers in any order, the last of several writes.
_OPEN = frozenset(
    "argsort index_copy index_put kthvalue median mode nanmedian put scatter sort topk".split()
)
_ATEN, EMPTY, _WRITE = "aten.", "empty", "write."
_SORTS = frozenset({"aten.sort.default", "aten.sort.stable"})
# Writes whose result is open only where two of them meet: whether any do, given the arguments.
_MAY_MEET: dict[str, Callable[..., bool]] = {
    "aten.index_copy.default": lambda x, dim, index, source: _meet(x, dim, index),
    "aten.index_put.default": lambda x, places, values, adds=False: (
        not adds and _puts_meet(x, places, values)
    ),
    "aten.scatter.src": lambda x, dim, index, source: index.dim() > 0 and index.shape[dim] > 1,
    "aten.scatter.value": lambda x, dim, index, value: False,
}
_DECIDED = _SORTS | _MAY_MEET.keys()
_CPU = torch.device("cpu")
_LINEAR_BACKWARD = "aten.linear_backward.default"


class Undecided(Exception):
    """The device may give another result that is as right."""


def is_computed(plan: Plan) -> bool:
    """Whether CPU torch computes a row, which gives what the device gives but for rounding."""
    name = plan.name.removeprefix(_WRITE) if plan.op is None else plan.name
    # Ours of `as_strided` has no overload.
    is_torchs = name.startswith(_ATEN) and (plan.op is not None or name.count(".") == 2)
    if is_torchs and name.split(".")[1] in _OPEN and name not in _DECIDED:
        return False
    if plan.is_random or plan.is_collective or not (is_torchs or name == EMPTY):
        return False
    if plan.op is not None and plan.name != _LINEAR_BACKWARD and not _is_on_cpu(_function(plan)):
        return False
    return all(type_ is None or is_whole(type_) for type_ in plan.types)


def _function(plan: Plan) -> Any:
    """The overload that writes to no operand."""
    assert plan.op is not None
    return plan.op.functional or plan.op.func


@functools.cache
def _is_on_cpu(function: Any) -> bool:
    return torch._C._dispatch_has_computed_kernel_for_dispatch_key(function.name(), "CPU")


def is_exact(plan: Plan) -> bool:
    """Whether the results of a row that is computed are the device's to the last bit."""
    if plan.op is None or plan.inverse is not None or plan.name in _EXACT:
        return True
    return not any(t.dtype.is_floating_point or t.dtype.is_complex for t in plan.types if t)


def is_whole(type_: TensorType) -> bool:
    """Whether the device stores a dtype as it is, not narrower."""
    return to_jax(type_.dtype) == nominal(type_.dtype)


def compute(plan: Plan, operands: Sequence[torch.Tensor], scalars: Sequence[Any]) -> list[Any]:
    """The results of a row as its plan says them, None for no tensor; memory may be operands'.

    Raises Undecided, and what CPU torch raises.
    """
    results = _results(plan, operands, scalars)
    for result, type_ in zip(results, plan.types, strict=True):
        if type_ is None:
            continue
        if result.shape != type_.shape or result.dtype != type_.dtype:
            raise Undecided
    return results


def _results(plan: Plan, operands: Sequence[torch.Tensor], scalars: Sequence[Any]) -> list[Any]:
    if plan.name == EMPTY:
        type_ = plan.types[0]
        assert type_ is not None
        return [torch.zeros(type_.shape, dtype=type_.dtype, device=_CPU)]
    numbers = iter(scalars)
    args = [fill(mark, operands, numbers) for mark in plan.args]
    kwargs = {name: _on_cpu(fill(mark, operands, numbers)) for name, mark in plan.kwargs.items()}
    if plan.name in _SORTS:
        # As the device sorts, whether it is asked for or not.
        given = dict(zip(("dim", "descending"), args[1:])) | kwargs | {"stable": True}
        return [*torch.ops.aten.sort.stable(args[0], **given)]
    if plan.name in _MAY_MEET and _MAY_MEET[plan.name](*args, **kwargs):
        raise Undecided
    if plan.name == _LINEAR_BACKWARD:
        return _linear_backward(*args)
    if plan.op is not None:
        return [*flat(_function(plan)(*args, **kwargs))]
    # The parent of a view, after a write of the view's: parent, view, what the view's step takes.
    parent = args[0].clone()
    op_of(plan.name.removeprefix(_WRITE)).func(parent, *args[2:], **kwargs).copy_(args[1])
    return [parent]


def _puts_meet(
    x: torch.Tensor, places: Sequence[torch.Tensor | None], values: torch.Tensor
) -> bool:
    if values.numel() == 1:
        return False
    given = [(dim, index) for dim, index in enumerate(places) if index is not None]
    if len(given) != 1:
        return True
    ((dim, index),) = given
    return index.dtype != torch.bool and _meet(x, dim, index)


def _meet(x: torch.Tensor, dim: int, index: torch.Tensor) -> bool:
    """Whether some of these places along a dim are one."""
    return len((index % x.shape[dim]).unique()) < index.numel()


def _linear_backward(
    x: torch.Tensor, slope: torch.Tensor, weight: torch.Tensor, wanted: Sequence[bool]
) -> list[Any]:
    """The gradients of [..., in], [out, in] and [out], which CPU torch has no operator for."""
    rows = slope.reshape(-1, slope.shape[-1])
    return [
        slope @ weight if wanted[0] else None,
        rows.t() @ x.reshape(-1, x.shape[-1]) if wanted[1] else None,
        rows.sum(0) if wanted[2] else None,
    ]


def _on_cpu(value: Any) -> Any:
    return _CPU if isinstance(value, torch.device) else value
