"""Windows of the trailing dimensions, and sums over them, one dimension after the other.

A window of 3x3 is 3 rows of what 3 columns gave, so the work is the sum of the kernel's sizes and
not their product, and everything is slices and elementwise operations, which XLA fuses. Its own
`reduce_window` and `select_and_scatter` are serial loops on the CPU. Used by `pool.py`, and by
`maxima.py` for maxima over windows.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_xdist.ops import forms

# Above this many pieces a strided read is left to a gather.
_MOST_PIECES = 4
# Kernels longer than this are reduced by one reduction where the windows do not overlap.
LONG = 16


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


def placed(
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
    x = placed(x, dims, [dim.padding for dim in dims], [dim.high for dim in dims])
    if forms.chosen().writes_out_taps and not (by_tiles and all(dim.tiled for dim in dims)):
        return _sums_at_once(x, dims)
    for i in range(len(dims) - 1, -1, -1):
        dim, axis = dims[i], x.ndim - len(dims) + i
        if dim.tiled and (by_tiles or dim.kernel > LONG):
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
