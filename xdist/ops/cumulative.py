"""Running sums, products and extremes along one dim; results have the operand's shape."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import torch

from torch_xdist.ops.operands import convert, is_complex, is_integral, opmath, widened
from torch_xdist.ops.table import lowers

Pair = tuple[jax.Array, jax.Array]


def _accumulated(self: jax.Array, dtype: torch.dtype | None) -> jax.Array:
    if dtype is not None:
        return widened(convert(self, dtype))
    return self.astype(jnp.int64) if is_integral(self) else widened(self)


@lowers("aten.cumsum.default")
def cumsum(self: jax.Array, dim: int, *, dtype: torch.dtype | None = None) -> jax.Array:
    self = _accumulated(self, dtype)
    return jnp.cumsum(self, axis=dim) if self.ndim else self


@lowers("aten.cumprod.default")
def cumprod(self: jax.Array, dim: int, *, dtype: torch.dtype | None = None) -> jax.Array:
    self = _accumulated(self, dtype)
    return jnp.cumprod(self, axis=dim) if self.ndim else self


def _running_extreme(
    self: jax.Array, dim: int, beats: Callable[[jax.Array, jax.Array], jax.Array]
) -> Pair:
    """The best number so far and its last position; a nan is best, and stays."""
    if self.ndim == 0:
        return self, jnp.zeros((), jnp.int64)

    def better(old: Pair, new: Pair) -> Pair:
        wins = (new[0] != new[0]) | ((old[0] == old[0]) & beats(new[0], old[0]))
        return jnp.where(wins, new[0], old[0]), jnp.where(wins, new[1], old[1])

    dim %= self.ndim
    places = jax.lax.broadcasted_iota(jnp.int64, self.shape, dim)
    return jax.lax.associative_scan(better, (self, places), axis=dim)


@lowers("aten.cummax.default")
def cummax(self: jax.Array, dim: int) -> Pair:
    return _running_extreme(self, dim, jnp.greater_equal)


@lowers("aten.cummin.default")
def cummin(self: jax.Array, dim: int) -> Pair:
    return _running_extreme(self, dim, jnp.less_equal)


def _log_add(old: jax.Array, new: jax.Array) -> jax.Array:
    if not is_complex(old):
        return jnp.logaddexp(old, new)
    top = jnp.maximum(old.real, new.real)
    top = jnp.where(jnp.isinf(top), 0, top)
    return jnp.log(jnp.exp(old - top) + jnp.exp(new - top)) + top


@lowers("aten.logcumsumexp.default", "aten._logcumsumexp.default")
@opmath
def logcumsumexp(self: jax.Array, dim: int) -> jax.Array:
    if self.ndim == 0:
        return self
    return jax.lax.associative_scan(_log_add, self, axis=dim % self.ndim)
