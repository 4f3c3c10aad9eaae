"""Rows that CPU torch computes on the host, and which those are."""

from collections.abc import Sequence
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
_ATEN, _EMPTY, _WRITE = "aten.", "empty", "write."
_SORTS, _PUT = frozenset({"aten.sort.default", "aten.sort.stable"}), "aten.index_put.default"
_DECIDED = _SORTS | {_PUT}
_CPU = torch.device("cpu")


class Undecided(Exception):
    """The device may give another result that is as right."""


def is_computed(plan: Plan) -> bool:
    """Whether CPU torch computes a row, which gives what the device gives but for rounding."""
    name = plan.name.removeprefix(_WRITE) if plan.op is None else plan.name
    # Ours of `as_strided` has no overload.
    is_torchs = name.startswith(_ATEN) and (plan.op is not None or name.count(".") == 2)
    if is_torchs and name.split(".")[1] in _OPEN and name not in _DECIDED:
        return False
    if plan.is_random or plan.is_collective or not (is_torchs or name == _EMPTY):
        return False
    return all(type_ is None or is_whole(type_) for type_ in plan.types)


def is_exact(plan: Plan) -> bool:
    """Whether the results of a row that is computed are the device's to the last bit."""
    if plan.op is None or plan.inverse is not None or plan.name in _EXACT:
        return True
    return not any(t.dtype.is_floating_point or t.dtype.is_complex for t in plan.types if t)


def is_whole(type_: TensorType) -> bool:
    """Whether the device stores a dtype as it is, not narrower."""
    return to_jax(type_.dtype) == nominal(type_.dtype)


def compute(
    plan: Plan, operands: Sequence[torch.Tensor], scalars: Sequence[Any]
) -> list[Any]:
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
    if plan.name == _EMPTY:
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
    if plan.name == _PUT and args[2].numel() != 1:
        raise Undecided  # Which of several is left is open.
    if plan.op is not None:
        return [*flat((plan.op.functional or plan.op.func)(*args, **kwargs))]
    # The parent of a view, after a write of the view's: parent, view, what the view's step takes.
    parent = args[0].clone()
    op_of(plan.name.removeprefix(_WRITE)).func(parent, *args[2:], **kwargs).copy_(args[1])
    return [parent]


def _on_cpu(value: Any) -> Any:
    return _CPU if isinstance(value, torch.device) else value
