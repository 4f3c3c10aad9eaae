"""Running sums, products and extremes along one dim; results have the operand's shape."""

import functools
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import torch

from torch_xdist.ops.arithmetic import logaddexp
from torch_xdist.ops.operands import convert, is_integral, opmath, widened
from torch_xdist.ops.settled import settled
from torch_xdist.ops.table import lowers

Pair = tuple[jax.Array, jax.Array]
_Operation = Callable[..., jax.Array]
# Up to here XLA's own loop over windows is as fast, and compiles faster.
_SHORT = 16
# Places of a piece on a CPU: 256 rows of 4096 take 2.5 ms, by pairs alone 3.9, in fours 2.8, in
# sixteens 6.8.
_PIECE = 8


def _running(
    op: _Operation, short: _Operation, self: jax.Array, dim: int, identity: Any
) -> jax.Array:
    """`op` over everything up to each place.

    XLA's own (`short`) walks a window per place: 2 to 7 times slower on CPUs from 512 on.
    """
    if self.shape[dim] <= _SHORT:
        return short(self, axis=dim)
    return jax.lax.platform_dependent(
        self,
        cpu=lambda x: _by_pieces(op, x, dim, identity),
        default=lambda x: _by_pairs(op, x, dim),
    )


def _by_pairs(op: _Operation, x: jax.Array, dim: int) -> jax.Array:
    """Pairs before fours before eights."""
    found: jax.Array = jax.lax.associative_scan(op, x, axis=dim)
    return found


def _by_pieces(op: _Operation, x: jax.Array, dim: int, identity: Any) -> jax.Array:
    """What came before each piece by pairs, and the places of a piece one after the other.

    The array is read and written twice, where pairs of all places go through it once a level.
    """
    size = x.shape[dim]
    padding = [(0, 0, 0)] * x.ndim
    padding[dim] = (0, -size % _PIECE, 0)
    # What the padding holds is seen by nothing before it.
    whole = jax.lax.pad(x, jnp.zeros((), x.dtype), padding)
    pieces = whole.reshape(*x.shape[:dim], -1, _PIECE, *x.shape[dim + 1 :])
    places = [jax.lax.index_in_dim(pieces, i, dim + 1, keepdims=False) for i in range(_PIECE)]
    ends = _by_pairs(op, settled(functools.reduce(op, places)), dim)
    first = jnp.full_like(jax.lax.slice_in_dim(ends, 0, 1, axis=dim), identity)
    before = settled(jnp.concatenate([first, jax.lax.slice_in_dim(ends, 0, -1, axis=dim)], dim))
    running = [*itertools.accumulate(places, op, initial=before)][1:]
    found = jnp.stack(running, dim + 1).reshape(whole.shape)
    return jax.lax.slice_in_dim(found, 0, size, axis=dim)


def _accumulated(self: jax.Array, dtype: torch.dtype | None) -> jax.Array:
    if dtype is not None:
        return widened(convert(self, dtype))
    return self.astype(jnp.int64) if is_integral(self) else widened(self)


@lowers("aten.cumsum.default")
def cumsum(self: jax.Array, dim: int, *, dtype: torch.dtype | None = None) -> jax.Array:
    self = _accumulated(self, dtype)
    return _running(jnp.add, jax.lax.cumsum, self, dim % self.ndim, 0) if self.ndim else self


@lowers("aten.cumprod.default")
def cumprod(self: jax.Array, dim: int, *, dtype: torch.dtype | None = None) -> jax.Array:
    self = _accumulated(self, dtype)
    return _running(jnp.multiply, jax.lax.cumprod, self, dim % self.ndim, 1) if self.ndim else self


def product_gradient(grad: jax.Array, self: jax.Array, products: jax.Array, dim: int) -> jax.Array:
    """The gradient of running products, of any numbers and zeros: without a division.

    Each product is the one before it times a number, so the gradient of a product is its own and,
    through that number, all of the next one's: a recurrence from the end, which pairs of its steps
    solve as well.
    """
    if self.ndim == 0:
        return grad
    dim %= self.ndim
    dtype = self.dtype
    grad, factors, products = widened(grad), widened(self), widened(products)
    one = jnp.ones_like(jax.lax.slice_in_dim(factors, 0, 1, axis=dim))
    through = jnp.concatenate([jax.lax.slice_in_dim(factors, 1, None, axis=dim), one], dim)

    def both(later: Pair, earlier: Pair) -> Pair:
        return later[0] * earlier[0], earlier[1] + earlier[0] * later[1]

    _, whole = jax.lax.associative_scan(both, (through, grad), reverse=True, axis=dim)
    before = jnp.concatenate([one, jax.lax.slice_in_dim(products, 0, -1, axis=dim)], dim)
    return (whole * before).astype(dtype)


def _extreme_identity(dtype: jnp.dtype, *, of_maxima: bool) -> Any:
    if jnp.issubdtype(dtype, jnp.floating):
        return -jnp.inf if of_maxima else jnp.inf
    if dtype == jnp.bool_:
        return not of_maxima
    info = jnp.iinfo(dtype)
    return info.min if of_maxima else info.max


def _running_extreme(self: jax.Array, dim: int, op: _Operation, short: _Operation) -> Pair:
    """The best number so far and its last position; a nan is best, and stays."""
    if self.ndim == 0:
        return self, jnp.zeros((), jnp.int64)
    dim %= self.ndim
    identity = _extreme_identity(self.dtype, of_maxima=op is jnp.maximum)
    best = _running(op, short, self, dim, identity)
    narrow = jnp.int32 if self.shape[dim] < 2**31 else jnp.int64
    places = jax.lax.broadcasted_iota(narrow, self.shape, dim)
    hits = jnp.where((self == best) | (self != self), places, 0)
    return best, _running(jnp.maximum, jax.lax.cummax, hits, dim, 0).astype(jnp.int64)


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
