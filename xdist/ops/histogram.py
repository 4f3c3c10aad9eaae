"""Histograms in one and more dims; what lies outside the outermost edges is not counted.

The last bin holds both its ends, every other bin its lower end only.
"""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from torch_xdist.ops.largest import largest, smallest
from torch_xdist.ops.operands import Number, is_integral, scalar, widened
from torch_xdist.ops.sort import searchsorted
from torch_xdist.ops.table import lowers

Pair = tuple[jax.Array, jax.Array]


def _apart(low: jax.Array, high: jax.Array, by: float) -> Pair:
    """The two ends, moved apart on both sides where they are equal."""
    point = low == high
    return jnp.where(point, low - by, low), jnp.where(point, high + by, high)


def _weighted_bins(place: jax.Array, amount: jax.Array, bins: int) -> jax.Array:
    """The sum of the amounts at each place; place `bins` is where the uncounted go."""
    return jnp.zeros(bins + 1, amount.dtype).at[place].add(amount)[:bins]


@lowers("aten.histc.default")
def histc(self: jax.Array, bins: int = 100, min: Number = 0, max: Number = 0) -> jax.Array:
    wide = self.astype(jnp.float64) if is_integral(self) else widened(self)
    flat = wide.reshape(-1)
    low, high = scalar(min, wide), scalar(max, wide)
    if self.size:
        # Equal ends mean the operand's own.
        own = low == high
        low, high = jnp.where(own, smallest(flat), low), jnp.where(own, largest(flat), high)
    low, high = _apart(low, high, 1)
    place = jnp.minimum(((flat - low) * bins / (high - low)).astype(jnp.int64), bins - 1)
    place = jnp.where((flat >= low) & (flat <= high), place, bins)
    return _weighted_bins(place, jnp.ones_like(flat), bins).astype(self.dtype)


def _edges(column: jax.Array, bins: int, ends: Sequence[float] | None) -> jax.Array:
    """`bins` bins of equal width between the given ends, or those of the numbers [n]."""
    if ends is not None:
        low, high = scalar(ends[0], column), scalar(ends[1], column)
    elif column.size == 0:
        low, high = scalar(0, column), scalar(1, column)
    else:
        low, high = smallest(column), largest(column)
    low, high = _apart(low, high, 0.5)
    return jnp.linspace(low, high, bins + 1, dtype=column.dtype)


def _places(column: jax.Array, edges: jax.Array) -> Pair:
    """The bin of each number [n], and whether it has one."""
    place = searchsorted(edges, column, right=True) - 1
    place = jnp.where(column == edges[-1], edges.shape[0] - 2, place)
    return place, (column >= edges[0]) & (column <= edges[-1])


def _counts(
    points: jax.Array, edges: Sequence[jax.Array], weight: jax.Array | None, density: bool
) -> jax.Array:
    """The histogram [bins of each dim] of points [n, dims]."""
    shape = tuple(edge.shape[0] - 1 for edge in edges)
    whole = jnp.zeros(points.shape[0], jnp.int64)
    counted = jnp.ones(points.shape[0], bool)
    for dim, edge in enumerate(edges):
        place, inside = _places(points[:, dim], edge)
        whole = whole * shape[dim] + place
        counted &= inside
    amount = jnp.ones(points.shape[0], points.dtype) if weight is None else weight.reshape(-1)
    bins = math.prod(shape)
    counts = _weighted_bins(jnp.where(counted, whole, bins), amount, bins).reshape(shape)
    return _densities(counts, edges) if density else counts


def _densities(counts: jax.Array, edges: Sequence[jax.Array]) -> jax.Array:
    """Counts divided by their sum and by the volume of their bins."""
    counts = counts / jnp.sum(counts)
    for dim, edge in enumerate(edges):
        widths = jnp.diff(edge)
        counts = counts / jnp.expand_dims(widths, [d for d in range(counts.ndim) if d != dim])
    return counts


@lowers("aten.histogram.bin_ct")
def histogram(
    self: jax.Array,
    bins: int = 100,
    *,
    range: Sequence[float] | None = None,
    weight: jax.Array | None = None,
    density: bool = False,
) -> Pair:
    column = self.reshape(-1)
    edges = _edges(column, bins, range)
    return _counts(column[:, None], [edges], weight, density), edges


@lowers("aten.histogram.bins_tensor")
def histogram_between(
    self: jax.Array, bins: jax.Array, *, weight: jax.Array | None = None, density: bool = False
) -> Pair:
    return _counts(self.reshape(-1, 1), [bins], weight, density), bins


@lowers("aten._histogramdd_bin_edges.default")
def bin_edges(
    self: jax.Array,
    bins: Sequence[int],
    *,
    range: Sequence[float] | None = None,
    weight: jax.Array | None = None,
    density: bool = False,
) -> list[jax.Array]:
    points = self.reshape(-1, self.shape[-1])
    ends = [None if range is None else range[2 * dim : 2 * dim + 2] for dim, _ in enumerate(bins)]
    return [_edges(points[:, dim], count, ends[dim]) for dim, count in enumerate(bins)]


@lowers("aten._histogramdd_from_bin_cts.default")
def histogramdd(
    self: jax.Array,
    bins: Sequence[int],
    *,
    range: Sequence[float] | None = None,
    weight: jax.Array | None = None,
    density: bool = False,
) -> jax.Array:
    points = self.reshape(-1, self.shape[-1])
    return _counts(points, bin_edges(self, bins, range=range), weight, density)


@lowers("aten._histogramdd_from_bin_tensors.default")
def histogramdd_between(
    self: jax.Array,
    bins: Sequence[jax.Array],
    *,
    weight: jax.Array | None = None,
    density: bool = False,
) -> jax.Array:
    return _counts(self.reshape(-1, self.shape[-1]), bins, weight, density)
