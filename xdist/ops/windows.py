"""Sums and maxima over windows of the trailing dimensions, one dimension after the other.

A window of 3x3 is 3 rows of what 3 columns gave, so the work is the sum of the kernel's sizes and
not their product, and everything is slices and elementwise operations, which XLA fuses. Its own
`reduce_window` and `select_and_scatter` are serial loops on the CPU. Used by `pool.py`.
"""

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_xdist.ops import forms
from torch_xdist.ops.positions import counted, narrowed

# Above this many pieces a strided read is left to a gather.
_MOST_PIECES = 4
# Kernels longer than this are reduced by one reduction where the windows do not overlap.
_LONG = 16
# So many are counted by an int8.
_MOST_TAPS = 127
# More sums than this are not written apart.
_MOST_PHASES = 16


@dataclass(frozen=True, slots=True)
class Windows:
    """The windows along one dimension: window i covers i * stride - padding + j * dilation."""

    size: int
    out: int
    kernel: int
    stride: int
    padding: int
    dilation: int = 1

    @property
    def high(self) -> int:
        """How far the last window reaches beyond the end; negative: what no window sees."""
        reach = (self.out - 1) * self.stride + self.dilation * (self.kernel - 1) + 1
        return reach - self.size - self.padding

    @property
    def tiled(self) -> bool:
        """Whether the windows lie side by side, so that a reshape separates them."""
        return self.kernel == self.stride and (self.dilation == 1 or self.kernel == 1)

    def positions(self) -> np.ndarray:
        """[kernel, out]: what each tap of each window reads.

        A tap that lies outside reads the nearest position of its window that lies inside, which
        changes no maximum and which of equal values is the first.
        """
        start = np.arange(self.out) * self.stride - self.padding
        taps = start + np.arange(self.kernel)[:, None] * self.dilation
        first = np.where(start < 0, start + -(start // self.dilation) * self.dilation, start)
        last = first + (self.size - 1 - first) // self.dilation * self.dilation
        return np.clip(taps, first, last)


def windows(
    sizes: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
) -> list[Windows]:
    """The windows of each dimension as torch's pooling counts them."""
    rank = len(sizes)
    each = [list(v) * rank if len(v) == 1 else list(v) for v in (kernel, padding, dilation)]
    kernel, padding, dilation = each
    stride = list(stride) or kernel
    stride = stride * rank if len(stride) == 1 else stride
    rows = zip(sizes, kernel, stride, padding, dilation)
    return [Windows(n, _count(n, k, s, p, d, ceil_mode), k, s, p, d) for n, k, s, p, d in rows]


def _count(size: int, kernel: int, stride: int, padding: int, dilation: int, ceil: bool) -> int:
    room = size + 2 * padding - dilation * (kernel - 1) - 1 + (stride - 1 if ceil else 0)
    count = room // stride + 1
    # torch drops a last window that would start in the padding at the end.
    return count - 1 if ceil and (count - 1) * stride >= size + padding else count


def read(x: jax.Array, axis: int, positions: np.ndarray | jax.Array) -> jax.Array:
    """`x` at `positions` along `axis`: by slices where they are few even runs."""
    if isinstance(positions, np.ndarray):
        runs = _runs(positions)
        if len(runs) <= _MOST_PIECES:
            pieces = [lax.slice_in_dim(x, a, b, c, axis) for a, b, c in runs]
            return pieces[0] if len(pieces) == 1 else jnp.concatenate(pieces, axis)
    return jnp.take(x, positions, axis)


def _runs(positions: np.ndarray) -> list[tuple[int, int, int]]:
    """Positions cut into (start, limit, step) with one step > 0 each."""
    runs, i = [], 0
    while i < len(positions):
        j, step = i + 1, 1
        if j < len(positions) and positions[j] > positions[i]:
            step = int(positions[j] - positions[i])
            while j < len(positions) and positions[j] - positions[j - 1] == step:
                j += 1
        runs.append((int(positions[i]), int(positions[j - 1]) + 1, step))
        i = j
    return runs


Positions = Sequence[np.ndarray | jax.Array]


def max_with_indices(x: jax.Array, positions: Positions) -> tuple[jax.Array, jax.Array]:
    """The first maximum of every window, and where it lies, counted over the trailing dimensions.

    Args:
        x: [..., *sizes].
        positions: per trailing dimension, [kernel, out]. A nan is larger than every number.

    Returns:
        Values and indices, both [..., *out].
    """
    sizes = x.shape[x.ndim - len(positions) :]
    integer = jnp.int32 if math.prod(sizes) < 2**31 else jnp.int64
    if forms.chosen().writes_out_taps and math.prod(len(taps) for taps in positions) <= _MOST_TAPS:
        return _max_by_taps(x, positions, integer)
    values, where, unit = x, None, 1
    for axis in range(x.ndim - 1, x.ndim - 1 - len(positions), -1):
        taps = positions[axis - x.ndim + len(positions)]
        values, where = _max_along(values, where, axis, taps, jnp.asarray(unit, integer))
        unit *= x.shape[axis]
    assert where is not None, "there is a trailing dimension"
    return values, where


def _max_by_taps(
    x: jax.Array, positions: Positions, integer: jnp.dtype
) -> tuple[jax.Array, jax.Array]:
    """`max_with_indices` for few taps: what is kept until the gradient is the number of a tap.

    It takes a byte of each window, where its place takes four, and that is worked out of it.
    """
    first = x.ndim - len(positions)
    values, taps, unit = x, None, 1
    for axis in range(x.ndim - 1, first - 1, -1):
        along = positions[axis - first]
        numbers = np.arange(len(along))[:, None]
        values, taps = _max_along(values, taps, axis, along, jnp.int8(unit), numbers)
        unit *= len(along)
    assert taps is not None, "there is a trailing dimension"
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
    if dims is not None and math.prod(dim.kernel for dim in dims) <= 2 * _LONG:
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
    return _placed(tiles, dims, [-dim.padding for dim in dims], [-dim.high for dim in dims])


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
        total += _placed(share, dims, low, high, [dim.stride - 1 for dim in dims])
    return total


def _has_phases(dims: Sequence[Windows]) -> bool:
    """Whether there are few places that windows give to in ways of their own."""
    few = math.prod(dim.stride for dim in dims) <= _MOST_PHASES
    return few and math.prod(dim.kernel for dim in dims) <= 2 * _LONG


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


def _placed(
    x: jax.Array,
    dims: Sequence[Windows],
    low: Sequence[int],
    high: Sequence[int],
    interior: Sequence[int] | None = None,
) -> jax.Array:
    """`lax.pad` of the trailing dimensions with zeros; negative numbers crop."""
    config = [(0, 0, 0)] * (x.ndim - len(dims))
    config += zip(low, high, interior or [0] * len(dims))
    return lax.pad(x, jnp.zeros((), x.dtype), config)


def sums(x: jax.Array, dims: Sequence[Windows], *, by_tiles: bool = False) -> jax.Array:
    """The sum of every window of the trailing dimensions; linear in `x`.

    `by_tiles` takes the form whose transpose is a broadcast where windows lie side by side.
    """
    x = _placed(x, dims, [dim.padding for dim in dims], [dim.high for dim in dims])
    if forms.chosen().writes_out_taps and not (by_tiles and all(dim.tiled for dim in dims)):
        return _sums_at_once(x, dims)
    for i in range(len(dims) - 1, -1, -1):
        dim, axis = dims[i], x.ndim - len(dims) + i
        if dim.tiled and (by_tiles or dim.kernel > _LONG):
            x = x.reshape(*x.shape[:axis], dim.out, dim.kernel, *x.shape[axis + 1 :])
            x = x.sum(axis + 1)
            continue
        taps = np.arange(dim.out) * dim.stride
        parts = [read(x, axis, taps + t * dim.dilation) for t in range(dim.kernel)]
        x = functools.reduce(jnp.add, parts)
    return x


def _sums_at_once(x: jax.Array, dims: Sequence[Windows]) -> jax.Array:
    """By XLA's own windows, of what is padded already."""
    lead = (1,) * (x.ndim - len(dims))
    return lax.reduce_window(
        x,
        np.zeros((), x.dtype),
        lax.add,
        (*lead, *(dim.kernel for dim in dims)),
        (*lead, *(dim.stride for dim in dims)),
        "VALID",
        window_dilation=(*lead, *(dim.dilation for dim in dims)),
    )
