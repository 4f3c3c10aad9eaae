"""The gradient by the input of a convolution with strides, by phases; `conv_rules.py` chooses it.

XLA computes it as a convolution of the gradient with zeros in between. Positions of the input that
lie a whole number of strides apart, a phase, see the same taps of the kernel: a convolution without
strides for each. Where the stride divides the kernel all phases see as many taps, and are output
channels of one convolution.
"""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax

from torch_xdist.ops.conv_forms import Window, native


def input_gradient_by_phases(
    grad: jax.Array, w: jax.Array, shape: Sequence[int], window: Window
) -> jax.Array:
    """grad [n, o, *out], w [o, c, *kernel] -> the gradient of the input, which has `shape`."""
    return interleaved(_phases(grad, w, window.stride, *reach(shape, window)), shape, window)


def reach(shape: Sequence[int], window: Window) -> tuple[list[int], list[int]]:
    """In strides of the padded input: where the input begins, and how many it touches."""
    sizes = zip(shape[2:], window.padding, window.stride)
    first = [p // s for p, s in zip(window.padding, window.stride)]
    return first, [(size - 1 + p) // s + 1 - f for f, (size, p, s) in zip(first, sizes)]


def interleaved(phases: jax.Array, shape: Sequence[int], window: Window) -> jax.Array:
    """Phases [n, c, *stride, *count] -> what has `shape` [n, c, *sizes], of which they are."""
    stride, (first, count) = window.stride, reach(shape, window)
    rank = len(stride)
    order = [axis for i in range(rank) for axis in (2 + rank + i, 2 + i)]
    spread = phases.transpose(0, 1, *order)
    spread = spread.reshape(*shape[:2], *(a * s for a, s in zip(count, stride)))
    start = [p - f * s for p, f, s in zip(window.padding, first, stride)]
    limit = [a + size for a, size in zip(start, shape[2:])]
    return lax.slice(spread, (0, 0, *start), (*shape[:2], *limit))


def padding_of_phase(
    out: Sequence[int], taps: Sequence[int], first: Sequence[int], count: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Below and above a gradient of `out` positions: a phase is a convolution of it without strides
    under a kernel of `taps`, turned around, at `count` positions from `first` on."""
    low = tuple(t - 1 - f for t, f in zip(taps, first))
    return low, tuple(a - size + f for a, size, f in zip(count, out, first))


def _phases(
    grad: jax.Array, w: jax.Array, stride: Sequence[int], first: Sequence[int], count: Sequence[int]
) -> jax.Array:
    """[n, c, *stride, *count]: the phases are output channels of one convolution."""
    o, c, *kernel = w.shape
    rank = len(stride)
    taps = [k // s for k, s in zip(kernel, stride)]
    pairs = [size for pair in zip(taps, stride) for size in pair]
    # [o, c, taps, stride, ...] -> [c, *stride, o, *taps]
    by_phase = w.reshape(o, c, *pairs).transpose(
        1, *range(3, 3 + 2 * rank, 2), 0, *range(2, 2 + 2 * rank, 2)
    )
    flat = by_phase.reshape(c * math.prod(stride), o, *taps)
    made = _one_phase(grad, flat, first, count)
    return made.reshape(grad.shape[0], c, *stride, *count)


def _one_phase(
    grad: jax.Array, w: jax.Array, first: Sequence[int], count: Sequence[int]
) -> jax.Array:
    """grad [n, o, *out], w [c, o, *taps] -> [n, c, *count], the positions from `first` on."""
    ones = (1,) * len(first)
    low, high = padding_of_phase(grad.shape[2:], w.shape[2:], first, count)
    window = Window(ones, low, high, ones, groups=1)
    return native(grad, jnp.flip(w, range(2, w.ndim)), window)
