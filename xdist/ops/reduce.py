"""Reductions to sums, products, means, variances, norms and truth values.

Operands arrive as they are; halves are accumulated in float32 and integers in int64, as torch
does. `dim` counts from either end, an empty list or None means all dims, and a 0-d operand takes
dim 0 or -1.
"""

from collections.abc import Callable, Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import torch

from torch_xdist.ops.largest import largest, smallest
from torch_xdist.ops.operands import (
    Number,
    convert,
    is_complex,
    is_float,
    is_integral,
    opmath,
    widened,
)
from torch_xdist.ops.table import add_rows, lowers

Dims = Sequence[int] | int | None


def axes(self: jax.Array, dim: Dims) -> tuple[int, ...]:
    """The dims to reduce, counted from the front; all of them for None or an empty list."""
    dims = (dim,) if isinstance(dim, int) else tuple(dim or ())
    if not dims:
        return tuple(range(self.ndim))
    return tuple(one % self.ndim for one in dims) if self.ndim else ()


def _summand(self: jax.Array, dtype: torch.dtype | None) -> jax.Array:
    """`self` in the dtype a sum accumulates in."""
    if dtype is not None:
        self = convert(self, dtype)
    elif is_integral(self):
        self = self.astype(jnp.int64)
    return widened(self)


@lowers("aten.sum.default", "aten.sum.dim_IntList")
def sum(
    self: jax.Array, dim: Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> jax.Array:
    return jnp.sum(_summand(self, dtype), axis=axes(self, dim), keepdims=keepdim)


@lowers("aten.nansum.default")
def nansum(
    self: jax.Array, dim: Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> jax.Array:
    return sum(jnp.where(self != self, 0, self), dim, keepdim, dtype=dtype)


@lowers("aten.prod.default")
def prod(self: jax.Array, *, dtype: torch.dtype | None = None) -> jax.Array:
    return jnp.prod(_summand(self, dtype))


@lowers("aten.prod.dim_int")
def prod_dim(
    self: jax.Array, dim: int, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> jax.Array:
    return jnp.prod(_summand(self, dtype), axis=axes(self, dim), keepdims=keepdim)


def _count(self: jax.Array, dims: tuple[int, ...]) -> int:
    return int(np.prod([self.shape[dim] for dim in dims], dtype=np.int64))


@lowers("aten.mean.default", "aten.mean.dim")
def mean(
    self: jax.Array, dim: Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> jax.Array:
    total = sum(self, dim, keepdim, dtype=dtype)
    return total / jnp.asarray(_count(self, axes(self, dim)), total.dtype)


def moments(
    self: jax.Array, dim: Dims, correction: Number | None, keepdim: bool
) -> tuple[jax.Array, jax.Array]:
    """Variance, with n - correction in the denominator, and mean."""
    dims = axes(self, dim)
    average = jnp.mean(self, axis=dims, keepdims=True)
    apart = self - average
    squares = jnp.real(apart * jnp.conj(apart))
    count = _count(self, dims)
    free = jnp.maximum(count - jnp.asarray(1 if correction is None else correction), 0)
    spread = jnp.sum(squares, axis=dims, keepdims=keepdim) / free.astype(squares.dtype)
    return spread, average if keepdim else jnp.squeeze(average, dims)


@lowers("aten.var.correction")
@opmath
def var(
    self: jax.Array,
    dim: Dims = None,
    *,
    correction: Number | None = None,
    keepdim: bool = False,
) -> jax.Array:
    return moments(self, dim, correction, keepdim)[0]


@lowers("aten.std.correction")
@opmath
def std(
    self: jax.Array,
    dim: Dims = None,
    *,
    correction: Number | None = None,
    keepdim: bool = False,
) -> jax.Array:
    return jnp.sqrt(moments(self, dim, correction, keepdim)[0])


@lowers("aten.var_mean.correction")
@opmath
def var_mean(
    self: jax.Array,
    dim: Dims = None,
    *,
    correction: Number | None = None,
    keepdim: bool = False,
) -> tuple[jax.Array, jax.Array]:
    return moments(self, dim, correction, keepdim)


@lowers("aten.std_mean.correction")
@opmath
def std_mean(
    self: jax.Array,
    dim: Dims = None,
    *,
    correction: Number | None = None,
    keepdim: bool = False,
) -> tuple[jax.Array, jax.Array]:
    spread, average = moments(self, dim, correction, keepdim)
    return jnp.sqrt(spread), average


def _truth(reduction: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    def over(self: jax.Array, dim: Dims = None, keepdim: bool = False) -> jax.Array:
        return reduction(self != 0, axis=axes(self, dim), keepdims=keepdim)

    return over


def _truth_over_listed(reduction: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """The `dims` overloads: here an empty list means no dim at all."""
    whole = _truth(reduction)

    def over(self: jax.Array, dim: Dims = None, keepdim: bool = False) -> jax.Array:
        if dim is not None and not isinstance(dim, int) and len(dim) == 0:
            return self != 0
        return whole(self, dim, keepdim)

    return over


for _name, _reduction in {"all": jnp.all, "any": jnp.any}.items():
    add_rows(
        {
            f"aten.{_name}.default": _truth(_reduction),
            f"aten.{_name}.dim": _truth(_reduction),
            f"aten.{_name}.dims": _truth_over_listed(_reduction),
        }
    )


@lowers("aten.count_nonzero.default", "aten.count_nonzero.dim_IntList")
def count_nonzero(self: jax.Array, dim: Dims = None) -> jax.Array:
    return jnp.sum(self != 0, axis=axes(self, dim), dtype=jnp.int64)


def _power_sum(size: jax.Array, order: Number, dims: tuple[int, ...], keepdim: bool) -> jax.Array:
    powers = size**order
    return jnp.sum(powers, axis=dims, keepdims=keepdim) ** (1 / order)


@lowers("aten.linalg_vector_norm.default")
@opmath
def vector_norm(
    self: jax.Array,
    ord: Number = 2,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> jax.Array:
    """The `ord`-norm [of magnitudes] over `dim`."""
    self = self if dtype is None else widened(convert(self, dtype))
    dims = axes(self, dim)
    total = partial(jnp.sum, axis=dims, keepdims=keepdim)
    size = jnp.abs(self)
    if ord == 0:
        return total(size != 0).astype(size.dtype)
    if ord == 2:
        square = jnp.real(self * jnp.conj(self)) if is_complex(self) else self * self
        return jnp.sqrt(total(square))
    if ord == 1:
        return total(size)
    if ord in (np.inf, -np.inf):
        return _extreme_size(size, ord, dims, keepdim)
    return _power_sum(size, ord, dims, keepdim)


def _extreme_size(size: jax.Array, order: float, dims: tuple[int, ...], keepdim: bool) -> jax.Array:
    reduction = largest if order > 0 else smallest
    # Of no numbers at all, the largest magnitude is zero; torch refuses the smallest.
    return reduction(size, axis=dims, keepdims=keepdim, initial=None if size.size else 0)


@lowers(
    "aten.norm.Scalar",
    "aten.norm.ScalarOpt_dtype",
    "aten.native_norm.default",
)
def norm(self: jax.Array, p: Number | None = 2, *, dtype: torch.dtype | None = None) -> jax.Array:
    return vector_norm(self, 2 if p is None else p, dtype=dtype)


@lowers(
    "aten.norm.ScalarOpt_dim",
    "aten.norm.ScalarOpt_dim_dtype",
    "aten.native_norm.ScalarOpt_dim_dtype",
)
def norm_dim(
    self: jax.Array,
    p: Number | None,
    dim: Dims,
    keepdim: bool = False,
    dtype: torch.dtype | None = None,
) -> jax.Array:
    return vector_norm(self, 2 if p is None else p, dim, keepdim, dtype=dtype)


@lowers("aten.dist.default")
@opmath
def dist(self: jax.Array, other: jax.Array, p: Number = 2) -> jax.Array:
    return vector_norm(self - other, p)


@lowers("aten.logsumexp.default")
@opmath
def logsumexp(self: jax.Array, dim: Dims, keepdim: bool = False) -> jax.Array:
    if is_integral(self):
        self = self.astype(jnp.float32)
    dims = axes(self, dim)
    if self.size == 0:
        return jnp.log(jnp.sum(jnp.exp(self), axis=dims, keepdims=keepdim))
    top = jnp.max(self.real if is_complex(self) else self, axis=dims, keepdims=True)
    top = jnp.where(jnp.isinf(top), 0, top)
    total = jnp.log(jnp.sum(jnp.exp(self - top), axis=dims, keepdims=True)) + top
    return total if keepdim else jnp.squeeze(total, dims)


@lowers("aten.renorm.default")
@opmath
def renorm(self: jax.Array, p: Number, dim: int, maxnorm: Number) -> jax.Array:
    others = [axis for axis in range(self.ndim) if axis != dim % self.ndim]
    norms = vector_norm(self, p, others, True)
    # The small addend keeps the quotient finite, and is torch's.
    return jnp.where(norms > maxnorm, self * (maxnorm / (norms + 1e-7)), self)


@lowers("aten.hash_tensor.default")
def hash_tensor(
    self: jax.Array, dim: Dims = None, *, keepdim: bool = False, mode: int = 0
) -> jax.Array:
    """The exclusive or of the bits of every number, as uint64."""
    if is_float(self):
        bits = jax.lax.bitcast_convert_type(self.astype(jnp.float64), jnp.uint64)
    else:
        bits = self.astype(jnp.uint64)
    hashed = jax.lax.reduce(bits, np.uint64(0), jax.lax.bitwise_xor, axes(self, dim))
    return jnp.expand_dims(hashed, axes(self, dim)) if keepdim else hashed
