"""Sorting, the largest few, places in sorted sequences, and histograms.

A nan is larger than every number. Sorting is stable always. Positions are int64.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from torch_xdist.ops.operands import Number, convert, is_integral, scalar, widened
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


def _range_of(self: jax.Array, low: Number, high: Number) -> Pair:
    """The histogram's ends: the operand's own where both are equal, made apart if still equal."""
    low, high = scalar(low, self), scalar(high, self)
    own = low == high
    if self.size:
        low = jnp.where(own, jnp.min(self), low)
        high = jnp.where(own, jnp.max(self), high)
    point = low == high
    return jnp.where(point, low - 1, low), jnp.where(point, high + 1, high)


def _counts(self: jax.Array, edges: jax.Array, weight: jax.Array | None) -> jax.Array:
    """How much weight lies between each two edges [n + 1]; the last bin has both its ends."""
    bins = edges.shape[0] - 1
    flat = self.reshape(-1)
    place = searchsorted(edges, flat, right=True) - 1
    place = jnp.where(flat == edges[-1], bins - 1, place)
    inside = (flat >= edges[0]) & (flat <= edges[-1])
    amount = jnp.ones_like(flat) if weight is None else weight.reshape(-1)
    place = jnp.where(inside, place, bins)
    return jnp.zeros(bins + 1, amount.dtype).at[place].add(amount)[:bins]


@lowers("aten.histc.default")
def histc(self: jax.Array, bins: int = 100, min: Number = 0, max: Number = 0) -> jax.Array:
    kind = self.dtype
    wide = self.astype(jnp.float64) if is_integral(self) else widened(self)
    low, high = _range_of(wide, min, max)
    flat = wide.reshape(-1)
    place = ((flat - low) * (bins / (high - low))).astype(jnp.int64)
    place = jnp.minimum(place, bins - 1)
    inside = (flat >= low) & (flat <= high)
    place = jnp.where(inside, place, bins)
    return jnp.zeros(bins + 1, wide.dtype).at[place].add(1)[:bins].astype(kind)


def _density(counts: jax.Array, edges: jax.Array) -> jax.Array:
    return counts / (jnp.sum(counts) * jnp.diff(edges))


@lowers("aten.histogram.bin_ct")
def histogram(
    self: jax.Array,
    bins: int = 100,
    *,
    range: Sequence[float] | None = None,
    weight: jax.Array | None = None,
    density: bool = False,
) -> Pair:
    low, high = _range_of(self, *(range or (0, 0)))
    edges = jnp.linspace(low, high, bins + 1, dtype=self.dtype)
    counts = _counts(self, edges, weight)
    return _density(counts, edges) if density else counts, edges


@lowers("aten.histogram.bins_tensor")
def histogram_between(
    self: jax.Array,
    bins: jax.Array,
    *,
    weight: jax.Array | None = None,
    density: bool = False,
) -> Pair:
    counts = _counts(self, bins, weight)
    return _density(counts, bins) if density else counts, bins
