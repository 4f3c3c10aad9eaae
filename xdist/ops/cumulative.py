"""Running sums, products and extremes along one dim; results have the operand's shape."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import torch

from torch_xdist.ops.arithmetic import logaddexp
from torch_xdist.ops.operands import convert, is_integral, opmath, widened
from torch_xdist.ops.table import lowers

Pair = tuple[jax.Array, jax.Array]
_BLOCK = 256


def _accumulated(self: jax.Array, dtype: torch.dtype | None) -> jax.Array:
    if dtype is not None:
        return widened(convert(self, dtype))
    return self.astype(jnp.int64) if is_integral(self) else widened(self)


def _running_sum(self: jax.Array, dim: int) -> jax.Array:
    """Sums within blocks, plus what came before each block: long rows in a few short passes."""
    size = self.shape[dim]
    if size <= _BLOCK * _BLOCK // 2:
        return jnp.cumsum(self, axis=dim)
    rows = jnp.moveaxis(self, dim, -1)
    rows = jnp.pad(rows, [(0, 0)] * (self.ndim - 1) + [(0, -size % _BLOCK)])
    inner = jnp.cumsum(rows.reshape(*rows.shape[:-1], -1, _BLOCK), axis=-1)
    totals = _running_sum(inner[..., -1], self.ndim - 1)
    before = jnp.pad(totals[..., :-1], [(0, 0)] * (self.ndim - 1) + [(1, 0)])
    whole = (inner + before[..., None]).reshape(rows.shape)[..., :size]
    return jnp.moveaxis(whole, -1, dim)


@lowers("aten.cumsum.default")
def cumsum(self: jax.Array, dim: int, *, dtype: torch.dtype | None = None) -> jax.Array:
    self = _accumulated(self, dtype)
    return _running_sum(self, dim % self.ndim) if self.ndim else self


@lowers("aten.cumprod.default")
def cumprod(self: jax.Array, dim: int, *, dtype: torch.dtype | None = None) -> jax.Array:
    self = _accumulated(self, dtype)
    return jnp.cumprod(self, axis=dim) if self.ndim else self


def _running_extreme(self: jax.Array, dim: int, running: Callable[..., jax.Array]) -> Pair:
    """The best number so far and its last position; a nan is best, and stays."""
    if self.ndim == 0:
        return self, jnp.zeros((), jnp.int64)
    dim %= self.ndim
    best = running(self, axis=dim)
    narrow = jnp.int32 if self.shape[dim] < 2**31 else jnp.int64
    places = jax.lax.broadcasted_iota(narrow, self.shape, dim)
    hits = jnp.where((self == best) | (self != self), places, 0)
    return best, jax.lax.cummax(hits, axis=dim).astype(jnp.int64)


@lowers("aten.cummax.default")
def cummax(self: jax.Array, dim: int) -> Pair:
    return _running_extreme(self, dim, jax.lax.cummax)


@lowers("aten.cummin.default")
def cummin(self: jax.Array, dim: int) -> Pair:
    return _running_extreme(self, dim, jax.lax.cummin)


@lowers("aten.logcumsumexp.default", "aten._logcumsumexp.default")
@opmath
def logcumsumexp(self: jax.Array, dim: int) -> jax.Array:
    if self.ndim == 0:
        return self
    return jax.lax.associative_scan(logaddexp, self, axis=dim % self.ndim)
