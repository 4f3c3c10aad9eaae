"""Arithmetic of sparse COO tensors: products, sums, functions that take zero to zero."""

from collections.abc import Sequence
from typing import Any

import torch

from torch_xdist.core.composites.sparse import (
    KERNELS,
    Kernel,
    SparseXlaTensor,
    added,
    coalesce,
    from_cpu,
    gathered,
    kernel,
    sparse,
    take_over,
    to_dense,
    with_values,
)
from torch_xdist.errors import NoLoweringError

# Operators that take zero to zero: they act on the values. The linear ones also on values that are
# still to be added up.
_LINEAR = ("neg", "positive", "clone", "detach", "alias")
_OF_ZERO_ZERO = (
    "abs", "asin", "asinh", "atan", "atanh", "ceil", "erf", "erfinv", "expm1", "floor", "frac",
    "log1p", "nan_to_num", "rad2deg", "deg2rad", "relu", "round", "sgn", "sign", "sin", "sinh",
    "sqrt", "tan", "tanh", "trunc",
)  # fmt: skip


def _linear(function: Kernel) -> Kernel:
    return lambda x, **kwargs: with_values(x, function(x.values_part))


def _of_zero_zero(function: Kernel) -> Kernel:
    def run(x: SparseXlaTensor, *args: Any, **kwargs: Any) -> SparseXlaTensor:
        once = coalesce(x)
        return with_values(once, function(once.values_part, *args, **kwargs))

    return run


def _in_place(function: Kernel) -> Kernel:
    """The same entries: the values are written, and whoever shares them sees it."""

    def run(x: SparseXlaTensor, *args: Any) -> SparseXlaTensor:
        x.values_part.copy_(function(x, *args).values_part)
        return x

    return run


for _names, _form in ((_LINEAR, _linear), (_OF_ZERO_ZERO, _of_zero_zero)):
    for _name in _names:
        KERNELS[f"{_name}.default"] = _form(getattr(torch.ops.aten, _name))


@kernel("pow.Tensor_Scalar")
def power(x: SparseXlaTensor, exponent: float) -> SparseXlaTensor:
    if exponent == 0:
        raise RuntimeError(
            "cannot raise to zeroth power on sparse tensor; it would make the result tensor dense"
        )
    once = coalesce(x)
    return with_values(once, once.values_part**exponent)


@kernel("mul.Tensor", "mul.Scalar")
def mul(one: Any, other: Any) -> SparseXlaTensor:
    """A sparse tensor times a number, a 0-d tensor or a strided one of its shape."""
    x, factor = (one, other) if isinstance(one, SparseXlaTensor) else (other, one)
    if isinstance(factor, SparseXlaTensor):
        factor = to_dense(factor)
    if isinstance(factor, torch.Tensor) and factor.dim():
        factor = gathered(factor.expand(x.shape), x.indices_part)
    return with_values(x, x.values_part * factor)


@kernel("div.Tensor", "div.Scalar")
def div(x: SparseXlaTensor, divisor: Any) -> SparseXlaTensor:
    """A sparse tensor by a number or a 0-d tensor."""
    if isinstance(divisor, torch.Tensor) and divisor.dim():
        raise NoLoweringError(
            "aten.div.Tensor divides a sparse tensor by a number or a 0-d tensor; call .to_dense()"
            " first"
        )
    return with_values(x, x.values_part / divisor)


@kernel("add.Tensor")
def add(one: torch.Tensor, other: torch.Tensor, *, alpha: Any = 1) -> torch.Tensor:
    """Sparse and sparse keep the entries of both; with a strided tensor the sum is strided."""
    if not isinstance(one, SparseXlaTensor):
        return add_(one.clone(), other, alpha=alpha)
    if not isinstance(other, SparseXlaTensor):
        return (other * alpha).add_(one)
    values = torch.cat([one.values_part, other.values_part * alpha])
    return sparse(torch.cat([one.indices_part, other.indices_part], 1), values, one.shape)


@kernel("sub.Tensor")
def sub(one: torch.Tensor, other: torch.Tensor, *, alpha: Any = 1) -> torch.Tensor:
    return add(one, other, alpha=-alpha)


@kernel("add_.Tensor")
def add_(target: torch.Tensor, other: Any, *, alpha: Any = 1) -> torch.Tensor:
    if isinstance(target, SparseXlaTensor):
        return take_over(target, add(target, other, alpha=alpha))  # type: ignore[arg-type]
    return added(target, other.indices_part, other.values_part * alpha)


for _name in ("div_.Tensor", "div_.Scalar", "neg_.default"):
    KERNELS[_name] = _in_place(KERNELS[_name.replace("_.", ".")])


@kernel("mul_.Tensor", "mul_.Scalar")
def mul_(x: SparseXlaTensor, factor: Any) -> SparseXlaTensor:
    """Unlike `div_`, torch's gives the tensor new values; who shared the old ones keeps them."""
    product = mul(x, factor)
    return take_over(x, with_values(product, product.values_part.to(x.dtype)))


@kernel("zeros_like.default")
def zeros_like(x: SparseXlaTensor, **kwargs: Any) -> SparseXlaTensor:
    values = x.values_part[:0].to(kwargs.get("dtype") or x.dtype)
    return sparse(x.indices_part[:, :0], values, x.shape, True)


KERNELS["zero_.default"] = lambda x: take_over(x, zeros_like(x))
KERNELS["detach_.default"] = lambda x: x


@kernel("copy_.default")
def copy_(target: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    if not isinstance(target, SparseXlaTensor):
        return target.copy_(to_dense(source))  # type: ignore[arg-type]
    if not source.is_sparse:
        raise NoLoweringError(
            "copy_: a strided tensor cannot be copied into a sparse one; call .to_sparse() first"
        )
    if not isinstance(source, SparseXlaTensor):
        source = from_cpu(source, target.device)
    return take_over(target, with_values(source, source.values_part.to(target.dtype, copy=True)))


@kernel("t.default")
def t(x: SparseXlaTensor) -> SparseXlaTensor:
    return transpose(x, 0, 1)


@kernel("transpose.int")
def transpose(x: SparseXlaTensor, dim0: int, dim1: int) -> SparseXlaTensor:
    """Two of the sparse dims exchanged."""
    order = list(range(x.indices_part.shape[0]))
    order[dim0], order[dim1] = order[dim1], order[dim0]
    return sparse(x.indices_part[order], x.values_part, [x.shape[i] for i in order])


@kernel("mm.default")
def mm(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Sparse [n, m] times strided [m, k]: strided [n, k]; or the other way round."""
    if not isinstance(one, SparseXlaTensor):
        return mm(other.t(), one.t()).t()
    if isinstance(other, SparseXlaTensor):
        other = to_dense(other)
    rows, columns = one.indices_part
    parts = one.values_part[:, None] * other[columns]
    return parts.new_zeros(one.shape[0], other.shape[1]).index_add_(0, rows, parts)


@kernel("addmm.default", "_sparse_addmm.default")
def addmm(
    bias: torch.Tensor, one: torch.Tensor, other: torch.Tensor, *, beta: Any = 1, alpha: Any = 1
) -> torch.Tensor:
    return bias * beta + mm(one, other) * alpha


@kernel("norm.Scalar", "norm.ScalarOpt_dim")
def norm(
    x: SparseXlaTensor, p: Any = 2, dim: Sequence[int] = (), keepdim: bool = False
) -> torch.Tensor:
    """The norm of the whole tensor."""
    if dim or keepdim:
        raise NoLoweringError(
            "aten.norm of a sparse tensor on an xla device is that of the whole tensor; call"
            " .to_dense() for the norms of a dim"
        )
    return coalesce(x).values_part.norm(p)


@kernel("sum.default")
def total(x: SparseXlaTensor, *, dtype: torch.dtype | None = None) -> torch.Tensor:
    return x.values_part.sum(dtype=dtype)
