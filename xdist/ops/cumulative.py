"""Running sums, products and extremes along one dim; results have the operand's shape."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import torch

from torch_xdist.ops.arithmetic import logaddexp
from torch_xdist.ops.operands import convert, is_integral, opmath, widened
from torch_xdist.ops.table import lowers

Pair = tuple[jax.Array, jax.Array]
# Up to here XLA's own loop over windows is as fast, and compiles faster.
_SHORT = 16


def _running(
    op: Callable[..., jax.Array], short: Callable[..., jax.Array], self: jax.Array, dim: int
) -> jax.Array:
    """`op` over everything up to each place, pairs before fours before eights.

    XLA's own (`short`) walks a window per place: 2 to 7 times slower on CPUs from 512 on.
    """
    if self.shape[dim] <= _SHORT:
        return short(self, axis=dim)
    return jax.lax.associative_scan(op, self, axis=dim)


def _accumulated(self: jax.Array, dtype: torch.dtype | None) -> jax.Array:
    if dtype is not None:
        return widened(convert(self, dtype))
    return self.astype(jnp.int64) if is_integral(self) else widened(self)


@lowers("aten.cumsum.default")
def cumsum(self: jax.Array, dim: int, *, dtype: torch.dtype | None = None) -> jax.Array:
    self = _accumulated(self, dtype)
    return _running(jnp.add, jax.lax.cumsum, self, dim % self.ndim) if self.ndim else self


@lowers("aten.cumprod.default")
def cumprod(self: jax.Array, dim: int, *, dtype: torch.dtype | None = None) -> jax.Array:
    self = _accumulated(self, dtype)
    return _running(jnp.multiply, jax.lax.cumprod, self, dim % self.ndim) if self.ndim else self


def _running_extreme(
    self: jax.Array, dim: int, op: Callable[..., jax.Array], short: Callable[..., jax.Array]
) -> Pair:
    """The best number so far and its last position; a nan is best, and stays."""
    if self.ndim == 0:
        return self, jnp.zeros((), jnp.int64)
    dim %= self.ndim
    best = _running(op, short, self, dim)
    narrow = jnp.int32 if self.shape[dim] < 2**31 else jnp.int64
    places = jax.lax.broadcasted_iota(narrow, self.shape, dim)
    hits = jnp.where((self == best) | (self != self), places, 0)
    return best, _running(jnp.maximum, jax.lax.cummax, hits, dim).astype(jnp.int64)


@lowers("aten.cummax.default")
def cummax(self: jax.Array, dim: int) -> Pair:
    return _running_extreme(self, dim, jnp.maximum, jax.lax.cummax)


@lowers("aten.cummin.default")
def cummin(self: jax.Array, dim: int) -> Pair:
    return _running_extreme(self, dim, jnp.minimum, jax.lax.cummin)


@lowers("aten.logcumsumexp.default", "aten._logcumsumexp.default")
@opmath
def logcumsumexp(self: jax.Array, dim: int) -> jax.Array:
    if self.ndim == 0:
        return self
    return jax.lax.associative_scan(logaddexp, self, axis=dim % self.ndim)
