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
    n, c, *sizes = shape
    stride, low = window.stride, window.padding
    # In strides, where the input begins and ends in its padded self.
    first = [p // s for p, s in zip(low, stride)]
    count = [(size - 1 + p) // s + 1 - f for size, p, s, f in zip(sizes, low, stride, first)]
    parts = _phases(grad, w, stride, first, count)
    # [n, c, *stride, *count] -> [n, c, *(count x stride)]
    rank = len(stride)
    order = [axis for i in range(rank) for axis in (2 + rank + i, 2 + i)]
    spread = parts.transpose(0, 1, *order)
    spread = spread.reshape(n, c, *(a * s for a, s in zip(count, stride)))
    start = [p - f * s for p, f, s in zip(low, first, stride)]
    limit = [a + size for a, size in zip(start, sizes)]
    return lax.slice(spread, (0, 0, *start), (n, c, *limit))


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
    out, taps, ones = grad.shape[2:], w.shape[2:], (1,) * len(first)
    low = tuple(t - 1 - f for t, f in zip(taps, first))
    high = tuple(a - size + f for a, size, f in zip(count, out, first))
    window = Window(ones, low, high, ones, groups=1)
    return native(grad, jnp.flip(w, range(2, w.ndim)), window)
