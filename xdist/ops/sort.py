"""Sorting, the largest few, and places in sorted sequences.

A nan is larger than every number. Sorting is stable always. Positions are int64.
"""

import jax
import jax.numpy as jnp

from torch_xdist.ops.operands import Number, convert
from torch_xdist.ops.table import lowers

Pair = tuple[jax.Array, jax.Array]


def _ascending(self: jax.Array, dim: int) -> Pair:
    places = jax.lax.broadcasted_iota(jnp.int64, self.shape, dim)
    return jax.lax.sort((self, places), dimension=dim, is_stable=True, num_keys=1)


def sort_along(self: jax.Array, dim: int, descending: bool) -> Pair:
    """The sorted operand and where its entries came from; equals keep their order."""
    if self.ndim == 0:
        return self, jnp.zeros((), jnp.int64)
    dim %= self.ndim
    if not descending:
        return _ascending(self, dim)
    # Flipped before and after: equals keep their order, and nan comes first.
    values, places = _ascending(jnp.flip(self, dim), dim)
    return jnp.flip(values, dim), self.shape[dim] - 1 - jnp.flip(places, dim)


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
    values, places = sort_along(self, dim, largest)
    if self.ndim == 0:
        return values, places
    return tuple(
        jax.lax.slice_in_dim(part, 0, k, axis=dim % self.ndim) for part in (values, places)
    )


def _insertion_points(
    sequence: jax.Array, values: jax.Array, right: bool, sorter: jax.Array | None
) -> jax.Array:
    """By bisection: sequence [.., n] ascending, values [.., k] -> int64 [.., k]."""
    size = sequence.shape[-1]
    low = jnp.zeros(values.shape, jnp.int64)
    high = jnp.full(values.shape, size, jnp.int64)
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
