"""Largest, smallest, middle and most frequent numbers, and where they are.

A nan counts as larger than every number in `max` and as smaller in `min`: it is always found.
Among equals the first position is given, as torch on the CPU does, except where a row says so.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from torch_xdist.ops.largest import largest, smallest
from torch_xdist.ops.operands import is_integral
from torch_xdist.ops.order import sorted_along
from torch_xdist.ops.positions import width
from torch_xdist.ops.reduce import Dims, axes
from torch_xdist.ops.selection import Pair, first_place, picked, take_rank
from torch_xdist.ops.table import add_rows, lowers


def _extreme(reduction: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    def over(self: jax.Array, dim: Dims = None, keepdim: bool = False) -> jax.Array:
        return reduction(self, axis=axes(self, dim), keepdims=keepdim)

    return over


amax, amin = _extreme(largest), _extreme(smallest)


def _position(reduction: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """Where the extreme number stands: quicker from its value than by a reduction of pairs."""

    def in_rows(self: jax.Array, dim: int, keepdim: bool) -> jax.Array:
        dim %= self.ndim
        best = reduction(self, axis=dim, keepdims=True)
        return first_place((self == best) | (self != self), dim, keepdim)

    def over(self: jax.Array, dim: int | None = None, keepdim: bool = False) -> jax.Array:
        if self.ndim == 0:
            return jnp.zeros((), jnp.int64)
        if dim is not None:
            return in_rows(self, dim, keepdim)
        found = in_rows(self.reshape(-1), 0, False)
        return found.reshape((1,) * self.ndim) if keepdim else found

    return over


argmax, argmin = _position(largest), _position(smallest)
add_rows(
    {
        "aten.amax.default": amax,
        "aten.amin.default": amin,
        "aten.max.default": amax,
        "aten.min.default": amin,
        "aten.argmax.default": argmax,
        "aten.argmin.default": argmin,
    }
)


@lowers("aten.max.dim")
def max_dim(self: jax.Array, dim: int, keepdim: bool = False) -> Pair:
    return amax(self, dim, keepdim), argmax(self, dim, keepdim)


@lowers("aten.min.dim")
def min_dim(self: jax.Array, dim: int, keepdim: bool = False) -> Pair:
    return amin(self, dim, keepdim), argmin(self, dim, keepdim)


@lowers("aten.aminmax.default", "aten._aminmax.default", "aten._aminmax.dim")
def aminmax(self: jax.Array, dim: int | None = None, keepdim: bool = False) -> Pair:
    return amin(self, dim, keepdim), amax(self, dim, keepdim)


def _median_along(self: jax.Array, dim: int, keepdim: bool, skip_nan: bool) -> Pair:
    if self.ndim == 0:
        return self, jnp.zeros((), jnp.int64)
    dim %= self.ndim
    size = self.shape[dim]
    missing = jnp.sum(self != self, axis=dim, keepdims=True)
    middle = (jnp.maximum(size - missing, 1) - 1) // 2
    if not skip_nan:
        # The first nan stands behind all numbers, and is the median where there is one.
        middle = jnp.where(missing > 0, size - missing, middle)
    return take_rank(self, middle, dim, keepdim)


@lowers("aten.median.dim")
def median_dim(self: jax.Array, dim: int, keepdim: bool = False) -> Pair:
    return _median_along(self, dim, keepdim, skip_nan=False)


@lowers("aten.nanmedian.dim")
def nanmedian_dim(self: jax.Array, dim: int, keepdim: bool = False) -> Pair:
    return _median_along(self, dim, keepdim, skip_nan=True)


def _median_of_all(self: jax.Array, skip_nan: bool) -> jax.Array:
    if self.size == 0:
        return jnp.full((), jnp.nan if not is_integral(self) else 0, self.dtype)
    return _median_along(self.reshape(-1), 0, False, skip_nan)[0]


@lowers("aten.median.default")
def median(self: jax.Array) -> jax.Array:
    return _median_of_all(self, skip_nan=False)


@lowers("aten.nanmedian.default")
def nanmedian(self: jax.Array) -> jax.Array:
    return _median_of_all(self, skip_nan=True)


@lowers("aten.kthvalue.default")
def kthvalue(self: jax.Array, k: int, dim: int = -1, keepdim: bool = False) -> Pair:
    if self.ndim == 0:
        return self, jnp.zeros((), jnp.int64)
    return take_rank(self, k - 1, dim % self.ndim, keepdim)


@lowers("aten.mode.default")
def mode(self: jax.Array, dim: int = -1, keepdim: bool = False) -> Pair:
    """The most frequent number along `dim`, the smallest of them, and its last position."""
    if self.ndim == 0:
        return self, jnp.zeros((), jnp.int64)
    dim %= self.ndim
    values, places = sorted_along(self, dim)
    rank = jax.lax.broadcasted_iota(width(self.shape[dim]), self.shape, dim)
    starts = jnp.where((rank == 0) | (values != jnp.roll(values, 1, axis=dim)), rank, 0)
    run = rank - jax.lax.cummax(starts, axis=dim)
    # The longest run ends at the first largest count.
    end = argmax(run, dim, True)
    return picked(values, places, end, dim, keepdim)
