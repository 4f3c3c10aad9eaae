"""Maxima over windows of the trailing dimensions with their places, and their gradients.

One dimension after the other, as in `windows.py`. Used by `pool.py`.
"""

import itertools
import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_xdist.ops import forms
from torch_xdist.ops.positions import counted, narrowed
from torch_xdist.ops.settled import settled
from torch_xdist.ops.windows import LONG, Windows, placed, read

# So many are counted by an int8.
_MOST_TAPS = 127
# More sums than this are not written apart.
_MOST_PHASES = 16
# Rows of 8 results, and of 16 and more, LLVM reads with strides by vectors; others one by one.
_VECTOR, _ROW = 8, 16

Positions = Sequence[np.ndarray | jax.Array]


def is_quicker_by_dim(dims: Sequence[Windows]) -> bool:
    """Whether a CPU shall write out the maxima along a dim before it looks along the next.

    In one kernel, windows that overlap compare the same numbers several times: 5 x 5 with stride 1
    on 4 x 128 x 20 x 20 take 6.7 ms so, and 1.4 by dims. Of short rows it reads every other number
    one by one, and those of all rows of a window: 2 x 2 on 32 x 32 x 28 x 28 1.28 and 0.94.
    """
    if not forms.chosen().is_host or math.prod(dim.kernel for dim in dims[:-1]) == 1:
        return False
    last = dims[-1]
    if last.stride == 1:
        return last.kernel > 2
    return last.kernel > 1 and _VECTOR < last.out < _ROW


def max_with_indices(
    x: jax.Array, positions: Positions, *, by_dim: bool = False
) -> tuple[jax.Array, jax.Array]:
    """The first maximum of every window, and where it lies, counted over the trailing dimensions.

    Args:
        x: [..., *sizes].
        positions: per trailing dimension, [kernel, out]. A nan is larger than every number.
        by_dim: what is found along a dim is written out (`is_quicker_by_dim`).

    Returns:
        Values and indices, both [..., *out].
    """
    sizes = x.shape[x.ndim - len(positions) :]
    integer = jnp.int32 if math.prod(sizes) < 2**31 else jnp.int64
    by_taps = by_dim or forms.chosen().writes_out_taps
    if by_taps and math.prod(len(taps) for taps in positions) <= _MOST_TAPS:
        return _max_by_taps(x, positions, integer, by_dim)
    values, where, unit = x, None, 1
    for axis in range(x.ndim - 1, x.ndim - 1 - len(positions), -1):
        taps = positions[axis - x.ndim + len(positions)]
        values, where = _max_along(values, where, axis, taps, jnp.asarray(unit, integer))
        unit *= x.shape[axis]
    assert where is not None, "there is a trailing dimension"
    return values, where


def _max_by_taps(
    x: jax.Array, positions: Positions, integer: jnp.dtype, by_dim: bool
) -> tuple[jax.Array, jax.Array]:
    """`max_with_indices` for few taps: what is kept until the gradient is the number of a tap.

    It takes a byte of each window, where its place takes four, and that is worked out of it. With
    `by_dim` values and numbers are written out after each dim but the last.
    """
    first = x.ndim - len(positions)
    values, taps, unit = x, None, 1
    for axis in range(x.ndim - 1, first - 1, -1):
        along = positions[axis - first]
        numbers = np.arange(len(along))[:, None]
        values, taps = _max_along(values, taps, axis, along, jnp.int8(unit), numbers)
        unit *= len(along)
        if by_dim and axis > first:
            values, taps = settled((values, taps))
    assert taps is not None, "there is a trailing dimension"
    if not by_dim:
        taps = lax.optimization_barrier(taps)
    where, unit = jnp.zeros((), integer), 1
    rest = taps
    for axis in range(x.ndim - 1, first - 1, -1):
        along = positions[axis - first]
        tap, rest = rest % len(along), rest // len(along)
        column = (-1, *(1,) * (x.ndim - 1 - axis))
        place = jnp.asarray(along[0], integer).reshape(column)
        for number, one in enumerate(along[1:], 1):
            place = jnp.where(tap == number, jnp.asarray(one, integer).reshape(column), place)
        where = where + place * jnp.asarray(unit, integer)
        unit *= x.shape[axis]
    return values, jnp.broadcast_to(where, values.shape)


def _max_along(
    values: jax.Array,
    where: jax.Array | None,
    axis: int,
    positions: np.ndarray | jax.Array,
    unit: jax.Array,
    numbers: np.ndarray | None = None,
) -> tuple[jax.Array, jax.Array]:
    best: jax.Array | None = None
    place: jax.Array | None = None
    column = (-1, *(1,) * (values.ndim - 1 - axis))
    for taps, number in zip(positions, positions if numbers is None else numbers):
        seen = read(values, axis, taps)
        offset = jnp.asarray(number, unit.dtype).reshape(column) * unit
        here = offset if where is None else read(where, axis, taps) + offset
        here = jnp.broadcast_to(here, seen.shape)
        if best is None or place is None:
            best, place = seen, here
            continue
        better = seen > best
        if jnp.issubdtype(seen.dtype, jnp.floating):
            better |= jnp.isnan(seen)
        # Without a choice between two values, for which CPUs would branch on the data: 0.4 ms where
        # that takes 1.4 (64 x 10 windows of 2 x 2 in 24 x 24). Of two zeros the positive one is
        # the maximum; its place is that of the first.
        best = jnp.maximum(best, seen)
        place += better.astype(unit.dtype) * (here - place)
    assert best is not None and place is not None, "a kernel has a tap"
    return best, place


def spread_by_indices(
    grad: jax.Array, indices: jax.Array, sizes: Sequence[int], dims: Sequence[Windows] | None
) -> jax.Array:
    """`grad` [..., *out] added at `indices` into zeros of [..., *sizes].

    `dims` names the windows that the indices come from, where they are known.
    """
    if dims is not None and all(dim.tiled for dim in dims):
        return _spread_tiles(grad, indices, sizes, dims)
    if dims is not None and forms.chosen().writes_out_taps and _has_phases(dims):
        return _spread_phases(grad, indices, sizes, dims)
    if dims is not None and math.prod(dim.kernel for dim in dims) <= 2 * LONG:
        return _spread_taps(grad, indices, sizes, dims)
    lead = grad.shape[: grad.ndim - len(sizes)]
    flat = grad.reshape(math.prod(lead), -1)
    rows = counted(flat.shape[0])[:, None]
    zeros = jnp.zeros((flat.shape[0], math.prod(sizes)), grad.dtype)
    places = narrowed(indices.reshape(flat.shape), zeros.shape[1])
    return zeros.at[rows, places].add(flat).reshape(*lead, *sizes)


def _spread_tiles(
    grad: jax.Array, indices: jax.Array, sizes: Sequence[int], dims: Sequence[Windows]
) -> jax.Array:
    """Each position belongs to one window: compare it with that window's index."""
    lead = grad.ndim - len(dims)
    indices = indices.astype(jnp.int32) if math.prod(sizes) < 2**31 else indices
    unit, flat = 1, jnp.zeros((), indices.dtype)
    for i in range(len(dims) - 1, -1, -1):
        dim = dims[i]
        covered = np.arange(dim.out * dim.kernel).reshape(dim.out, dim.kernel) - dim.padding
        shape = [1] * (2 * len(dims))
        shape[2 * i : 2 * i + 2] = covered.shape
        flat = flat + jnp.asarray(covered * unit, indices.dtype).reshape(shape)
        unit *= dim.size
    axes = tuple(lead + 2 * i + 1 for i in range(len(dims)))
    chosen = jnp.expand_dims(indices, axes) == flat
    tiles = jnp.where(chosen, jnp.expand_dims(grad, axes), jnp.zeros((), grad.dtype))
    tiles = tiles.reshape(*grad.shape[:lead], *(dim.out * dim.kernel for dim in dims))
    return placed(tiles, dims, [-dim.padding for dim in dims], [-dim.high for dim in dims])


def _spread_taps(
    grad: jax.Array, indices: jax.Array, sizes: Sequence[int], dims: Sequence[Windows]
) -> jax.Array:
    """One sum over the positions of the kernel: each gives its share to a strided place."""
    indices = indices.astype(jnp.int32) if math.prod(sizes) < 2**31 else indices
    total = jnp.zeros((*grad.shape[: grad.ndim - len(dims)], *sizes), grad.dtype)
    for tap in np.ndindex(*(dim.kernel for dim in dims)):
        places = [
            np.arange(dim.out) * dim.stride - dim.padding + t * dim.dilation
            for t, dim in zip(tap, dims)
        ]
        share = jnp.where(
            indices == _numbered(places, sizes, indices.dtype), grad, jnp.zeros((), grad.dtype)
        )
        low = [t * dim.dilation - dim.padding for t, dim in zip(tap, dims)]
        high = [dim.size - a - (dim.out - 1) * dim.stride - 1 for a, dim in zip(low, dims)]
        total += placed(share, dims, low, high, [dim.stride - 1 for dim in dims])
    return total


def _has_phases(dims: Sequence[Windows]) -> bool:
    """Whether there are few places that windows give to in ways of their own."""
    few = math.prod(dim.stride for dim in dims) <= _MOST_PHASES
    return few and math.prod(dim.kernel for dim in dims) <= 2 * LONG


def _spread_phases(
    grad: jax.Array, indices: jax.Array, sizes: Sequence[int], dims: Sequence[Windows]
) -> jax.Array:
    """One sum for each residue of a place by the strides, of the windows that can reach it.

    What `_spread_taps` adds is as large as all places for each position of the kernel, with zeros
    in between, and TPUs write each of them out: 1.9 GB for ResNet-50's at 64 images of 224 x 224.
    """
    indices = indices.astype(jnp.int32) if math.prod(sizes) < 2**31 else indices
    lead = grad.ndim - len(dims)
    # Places of one residue, a * stride + residue, and how far their windows lie from a.
    counts = [-(-dim.size // dim.stride) for dim in dims]
    reaches = [[_windows_of(dim, residue) for residue in range(dim.stride)] for dim in dims]
    shifts = [[shift for found in one for shift in found] for one in reaches]
    low = [max([0, *(-shift for shift in one)]) for one in shifts]
    high = [
        max([0, *(count + shift - dim.out for shift in one)])
        for dim, count, one in zip(dims, counts, shifts)
    ]
    grown = [(0, 0, 0)] * lead + [(a, b, 0) for a, b in zip(low, high)]
    grad = lax.pad(grad, jnp.zeros((), grad.dtype), grown)
    indices = lax.pad(indices, jnp.full((), -1, indices.dtype), grown)

    def seen(x: jax.Array, at: Sequence[int]) -> jax.Array:
        starts = [0] * lead + [a + b for a, b in zip(low, at)]
        ends = [*x.shape[:lead], *(a + n for a, n in zip(starts[lead:], counts))]
        return lax.slice(x, starts, ends)

    def phase(residues: Sequence[int]) -> jax.Array:
        places = [
            np.arange(count) * dim.stride + residue
            for count, residue, dim in zip(counts, residues, dims)
        ]
        numbers = _numbered(places, sizes, indices.dtype)
        total = jnp.zeros((*grad.shape[:lead], *counts), grad.dtype)
        of_each = (reaches[i][residue] for i, residue in enumerate(residues))
        for at in itertools.product(*of_each):
            total += jnp.where(seen(indices, at) == numbers, seen(grad, at), 0)
        return total

    return _interleaved(phase, dims)


def _windows_of(dim: Windows, residue: int) -> list[int]:
    """Window a + shift sees place a * stride + residue, for each of these shifts."""
    reached = [residue + dim.padding - tap * dim.dilation for tap in range(dim.kernel)]
    return [offset // dim.stride for offset in reached if offset % dim.stride == 0]


def _numbered(places: Sequence[np.ndarray], sizes: Sequence[int], integer: jnp.dtype) -> jax.Array:
    """Places along each of the trailing dimensions as numbers over all of them."""
    unit, flat = 1, jnp.zeros((), integer)
    for i in range(len(sizes) - 1, -1, -1):
        shape = (-1, *(1,) * (len(sizes) - 1 - i))
        flat = flat + jnp.asarray(places[i] * unit, integer).reshape(shape)
        unit *= sizes[i]
    return flat


def _interleaved(phase: Callable[[Sequence[int]], jax.Array], dims: Sequence[Windows]) -> jax.Array:
    """Of what each choice of residues gives, place after place."""

    def over(residues: tuple[int, ...]) -> jax.Array:
        if len(residues) == len(dims):
            return phase(residues)
        dim = dims[len(residues)]
        parts = [over((*residues, residue)) for residue in range(dim.stride)]
        axis = parts[0].ndim - len(dims) + len(residues)
        x = jnp.stack(parts, axis + 1)
        x = x.reshape(*x.shape[:axis], -1, *x.shape[axis + 2 :])
        return lax.slice_in_dim(x, 0, dim.size, axis=axis)

    return over(())
