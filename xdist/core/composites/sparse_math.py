"""Arithmetic of sparse COO tensors: products, sums, functions that take zero to zero."""

import functools
from collections.abc import Sequence
from typing import Any

import torch

from torch_xdist.core.alias.out_dtypes import check_castable, dtype_title
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
        values = function(x, *args).values_part
        check_castable(values.dtype, x.dtype)
        x.values_part.copy_(values)
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
    values = once.values_part**exponent
    check_castable(values.dtype, x.dtype)
    return with_values(once, values)


@kernel("mul.Tensor", "mul.Scalar")
def mul(one: Any, other: Any) -> SparseXlaTensor:
    """A sparse tensor times a number, a 0-d tensor or a strided one of its shape."""
    x, factor = (one, other) if isinstance(one, SparseXlaTensor) else (other, one)
    if isinstance(factor, SparseXlaTensor):
        factor = to_dense(factor)
    if isinstance(factor, torch.Tensor) and factor.dim():
        factor = gathered(factor.expand(x.shape), x.indices_part)
    return with_values(x, x.values_part * factor)


@kernel("mul_.Tensor", "mul_.Scalar")
def mul_(target: torch.Tensor, factor: Any) -> torch.Tensor:
    """Unlike `div_`, torch's gives a sparse tensor new values; who shared the old ones keeps them.

    A strided tensor becomes zero where the sparse one has no entry.
    """
    if not isinstance(target, SparseXlaTensor):
        _check_same_size(target, factor)
        product = mul(target, factor)
        _check_kept(product.dtype, target.dtype, "add")
        return target.copy_(to_dense(product))
    product = mul(target, factor)
    if isinstance(factor, SparseXlaTensor):
        _check_kept(product.dtype, target.dtype, "mul")
    elif product.dtype != target.dtype:
        raise RuntimeError(
            f"dtype of values ({dtype_title(product.dtype)}) must match dtype of sparse tensor"
            f" ({dtype_title(target.dtype)})"
        )
    return take_over(target, with_values(product, product.values_part.to(target.dtype)))


def _divisor_of(divisor: Any, what: str) -> Any:
    """What divides all entries alike; torch's refusal of any other."""
    if isinstance(divisor, torch.Tensor) and (divisor.dim() or divisor.is_sparse):
        raise RuntimeError(
            f"Sparse {what} requires a scalar or zero-dim dense tensor divisor (got shape"
            f" {list(divisor.shape)} for divisor)"
        )
    return divisor


@kernel("div.Tensor", "div.Scalar")
def div(x: SparseXlaTensor, divisor: Any) -> SparseXlaTensor:
    """A sparse tensor by a number or a 0-d tensor."""
    divisor = _divisor_of(divisor, "division")
    return with_values(x, x.values_part / divisor)


@kernel("div.Tensor_mode", "div.Scalar_mode")
def div_rounded(x: SparseXlaTensor, divisor: Any, *, rounding_mode: str | None) -> SparseXlaTensor:
    """Of quotients that are rounded, what stands at one index is added up first."""
    divisor = _divisor_of(divisor, "division")
    once = coalesce(x) if rounding_mode else x
    return with_values(once, once.values_part.div(divisor, rounding_mode=rounding_mode))


@kernel("floor_divide.default", "floor_divide.Scalar")
def floor_divide(x: SparseXlaTensor, divisor: Any) -> SparseXlaTensor:
    return div_rounded(x, _divisor_of(divisor, "floor division"), rounding_mode="floor")


@kernel("floor_divide_.Tensor", "floor_divide_.Scalar")
def floor_divide_(x: SparseXlaTensor, divisor: Any) -> SparseXlaTensor:
    quotient = floor_divide(x, divisor)
    check_castable(quotient.dtype, x.dtype)
    return take_over(x, with_values(quotient, quotient.values_part.to(x.dtype)))


def _sum_type(difference: bool, one: Any, other: Any, alpha: Any) -> torch.dtype:
    """The dtype of a sum; torch's refusals of its operands, and of `alpha`."""
    first, second = (
        torch.empty(x.shape, dtype=x.dtype, device="meta") if isinstance(x, torch.Tensor) else x
        for x in (one, other)
    )
    return (torch.sub if difference else torch.add)(first, second, alpha=alpha).dtype


@kernel("add.Tensor", "add.Scalar")
def add(one: Any, other: Any, alpha: Any = 1, *, is_difference: bool = False) -> torch.Tensor:
    """Sparse and sparse keep the entries of both; a strided tensor and a sparse one are strided."""
    dtype = _sum_type(is_difference, one, other, alpha)
    alpha = -alpha if is_difference else alpha
    if not isinstance(one, SparseXlaTensor):
        _check_same_size(one, other)
        return _added(one.to(dtype, copy=True), other, alpha)
    if not isinstance(other, SparseXlaTensor):
        raise RuntimeError("add(sparse, dense) is not supported. Use add(dense, sparse) instead.")
    values = torch.cat([one.values_part.to(dtype), _scaled(other, alpha).to(dtype)])
    return sparse(torch.cat([one.indices_part, other.indices_part], 1), values, one.shape)


@kernel("add_.Tensor", "add_.Scalar")
def add_(
    target: torch.Tensor, other: Any, alpha: Any = 1, *, is_difference: bool = False
) -> torch.Tensor:
    if isinstance(target, SparseXlaTensor):
        total = add(target, other, alpha, is_difference=is_difference)
        assert isinstance(total, SparseXlaTensor)
        _check_kept(total.dtype, target.dtype, "add")
        return take_over(target, with_values(total, total.values_part.to(target.dtype)))
    _check_same_size(target, other)
    _check_kept(_sum_type(is_difference, target, other, alpha), target.dtype, "add")
    return _added(target, other, -alpha if is_difference else alpha)


for _name in ("add.Tensor", "add.Scalar", "add_.Tensor", "add_.Scalar"):
    KERNELS[_name.replace("add", "sub")] = functools.partial(KERNELS[_name], is_difference=True)


def _scaled(x: SparseXlaTensor, alpha: Any) -> torch.Tensor:
    return x.values_part if alpha == 1 else x.values_part * alpha


def _added(dense: torch.Tensor, x: SparseXlaTensor, alpha: Any) -> torch.Tensor:
    return added(dense, x.indices_part, _scaled(x, alpha).to(dense.dtype))


def _check_same_size(dense: Any, x: SparseXlaTensor) -> None:
    shape = list(dense.shape) if isinstance(dense, torch.Tensor) else []
    if shape != list(x.shape):
        raise RuntimeError(
            f"add: expected 'self' and 'other' to have same size, but self has size {shape} while"
            f" other has size {list(x.shape)} (FYI: dense-sparse addition does not currently"
            " support broadcasting)"
        )


def _check_kept(result: torch.dtype, target: torch.dtype, what: str) -> None:
    """torch's refusal of a sum or a product that its target cannot hold."""
    if not torch.can_cast(result, target):
        raise RuntimeError(
            f"Can't convert result type {dtype_title(result)} to output {dtype_title(target)} in"
            f" {what} operation"
        )


for _name in ("div_.Tensor", "div_.Scalar", "neg_.default"):
    KERNELS[_name] = _in_place(KERNELS[_name.replace("_.", ".")])


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
