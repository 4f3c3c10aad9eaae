"""Sorting, the largest few, and places in sorted sequences.

A nan is larger than every number. Sorting is stable always.
"""

import jax
import jax.numpy as jnp
from jax import lax

from torch_xdist.ops import forms
from torch_xdist.ops.index import CLAMPED
from torch_xdist.ops.operands import Number, convert
from torch_xdist.ops.order import along, order_along, sorted_along
from torch_xdist.ops.positions import are_narrow, narrowed, width
from torch_xdist.ops.table import lowers

Pair = tuple[jax.Array, jax.Array]


# Up to this part of a row, picking the largest is quicker than sorting all of it.
_FEW = 8
# XLA's top-k for CPUs walks its rows on one thread. The largest are in the pieces whose own largest
# are: of 512 x 4096 the 10 largest take 3.3 ms, and 1.7 in pieces of so many; 1 of 1,000,000, 100:
# 1.1, 0.2; 4096 x 1024, 2: 5.4, 2.2; 64 x 2048, 8: 0.19, 0.19.
_PIECE = 32
_MANY = 2**17


def sort_along(self: jax.Array, dim: int, descending: bool) -> Pair:
    """The sorted operand and where its entries came from; equals keep their order."""
    if self.ndim == 0:
        return self, jnp.zeros((), jnp.int64)
    return sorted_along(self, dim % self.ndim, descending)


@lowers("aten.sort.default")
def sort(self: jax.Array, dim: int = -1, descending: bool = False) -> Pair:
    return sort_along(self, dim, descending)


@lowers("aten.sort.stable")
def sort_stable(
    self: jax.Array, *, stable: bool | None = None, dim: int = -1, descending: bool = False
) -> Pair:
    return sort_along(self, dim, descending)


@lowers("aten.topk.default")
def topk(self: jax.Array, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Pair:
    if self.ndim == 0:
        return self, jnp.zeros((), jnp.int64)
    dim %= self.ndim
    if self.dtype in (jnp.float32, jnp.bfloat16, jnp.float16) and k * _FEW <= self.shape[dim]:
        rows = jnp.moveaxis(self, dim, -1).astype(jnp.float32)
        if are_narrow():
            found, places = (jnp.moveaxis(x, -1, dim) for x in _few_of_rows(rows, k, largest))
            return found.astype(self.dtype), places
        places = jnp.moveaxis(_few_largest(rows, k, largest), -1, dim)
        return along(self, places, dim), places
    if are_narrow():
        found, places = sorted_along(self, dim, largest)
        return lax.slice_in_dim(found, 0, k, axis=dim), lax.slice_in_dim(places, 0, k, axis=dim)
    places = lax.slice_in_dim(order_along(self, dim, largest), 0, k, axis=dim)
    return along(self, places, dim), places


def _few_of_rows(rows: jax.Array, k: int, largest: bool) -> Pair:
    """The k largest or smallest of each row [..., n], and their places: nothing is gathered."""

    def pick(rows: jax.Array) -> Pair:
        found, places = _top(rows if largest else -rows, k)
        return found if largest else -found, places

    def sort_all(rows: jax.Array) -> Pair:
        found, places = sorted_along(rows, rows.ndim - 1, largest)
        return found[..., :k], places[..., :k]

    # As in `_few_largest`.
    return lax.cond(jnp.isnan(rows).any(), sort_all, pick, rows)  # type: ignore[no-any-return]


def _few_largest(rows: jax.Array, k: int, largest: bool) -> jax.Array:
    """The places of the k largest or smallest of each row [..., n]."""

    def pick(rows: jax.Array) -> jax.Array:
        return _top(rows if largest else -rows, k)[1].astype(width(rows.shape[-1]))

    def sort_all(rows: jax.Array) -> jax.Array:
        return order_along(rows, rows.ndim - 1, largest)[..., :k]

    # Where XLA puts a nan differs from torch, so rows with one are sorted.
    return lax.cond(jnp.isnan(rows).any(), sort_all, pick, rows)


def _top(rows: jax.Array, k: int) -> Pair:
    """`lax.top_k` of [..., n] without nan: of equals the first."""
    *lead, n = rows.shape
    if not forms.chosen().is_host or rows.size < _MANY or 4 * k * _PIECE > n:
        return lax.top_k(rows, k)
    whole = jnp.pad(rows, [*[(0, 0)] * len(lead), (0, -n % _PIECE)], constant_values=-jnp.inf)
    pieces = whole.reshape(*lead, -1, _PIECE)
    # In the order of their places, so that of equals the first is found.
    best = jnp.sort(lax.top_k(pieces.max(-1), k)[1], -1)
    of_best = jnp.take_along_axis(pieces, best[..., None], -2, mode=CLAMPED)
    found, at = lax.top_k(of_best.reshape(*lead, -1), k)
    piece = jnp.take_along_axis(best, at // _PIECE, -1, mode=CLAMPED)
    return found, piece * _PIECE + at % _PIECE


def _insertion_points(
    sequence: jax.Array, values: jax.Array, right: bool, sorter: jax.Array | None
) -> jax.Array:
    """By bisection: sequence [.., n] ascending, values [.., k] -> [.., k]."""
    size = sequence.shape[-1]
    sorter = None if sorter is None else narrowed(sorter, size)
    low = jnp.zeros(values.shape, width(size))
    high = jnp.full(values.shape, size, low.dtype)
    for _ in range(size.bit_length()):
        middle = (low + high) // 2
        place = jnp.minimum(middle, max(size - 1, 0))
        if sorter is not None:
            place = jnp.take_along_axis(sorter, place, axis=-1)
        found = jnp.take_along_axis(sequence, place, axis=-1)
        # Written with "not", so that a nan goes behind all numbers.
        after = ~(found > values) if right else ~(found >= values)
        after &= low < high
        low, high = jnp.where(after, middle + 1, low), jnp.where(after, high, middle)
    return low


def _found(points: jax.Array, out_int32: bool) -> jax.Array:
    return points.astype(jnp.int32) if out_int32 else points


@lowers("aten.searchsorted.Tensor", "aten.searchsorted.Scalar")
def searchsorted(
    sorted_sequence: jax.Array,
    self: jax.Array | Number,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: jax.Array | None = None,
) -> jax.Array:
    """Where to insert `self` [.., k] into the rows of `sorted_sequence` [.., n] or [n]."""
    values = jnp.asarray(self)
    shape = values.shape
    common = jnp.result_type(sorted_sequence, values)
    sequence, values = convert(sorted_sequence, common), convert(values, common)
    if sequence.ndim == 1:
        values = values.reshape(-1)
    right = right or side == "right"
    if sequence.shape[-1] == 0 or values.size == 0:
        return jnp.zeros(shape, jnp.int32 if out_int32 else jnp.int64)
    points = _insertion_points(sequence, values, right, sorter)
    return _found(points.reshape(shape), out_int32)


@lowers("aten.bucketize.Tensor", "aten.bucketize.Scalar")
def bucketize(
    self: jax.Array | Number,
    boundaries: jax.Array,
    *,
    out_int32: bool = False,
    right: bool = False,
) -> jax.Array:
    return searchsorted(boundaries, self, out_int32=out_int32, right=right)


@lowers("aten.isin.Tensor_Tensor", "aten.isin.Tensor_Scalar", "aten.isin.Scalar_Tensor")
def isin(
    elements: jax.Array | Number,
    test_elements: jax.Array | Number,
    *,
    assume_unique: bool = False,
    invert: bool = False,
) -> jax.Array:
    elements, tested = jnp.asarray(elements), jnp.asarray(test_elements)
    common = jnp.result_type(elements, tested)
    elements, ordered = convert(elements, common), jnp.sort(convert(tested, common).reshape(-1))
    if ordered.size == 0:
        return jnp.full(elements.shape, invert)
    place = jnp.minimum(searchsorted(ordered, elements), ordered.size - 1)
    return (ordered[place] == elements) != invert
