"""Convolutions of large weights on a CPU, turned around by a copy of XLA's own.

XLA has the channels last in all that it convolves there, and turns weights [o, c, *kernel] around.
It fuses that with what comes before and after it and computes it in the order of the result: it
reads one number of each row after the other, rows a power of two apart, which the caches cannot
hold. Weights of 512 x 512 x 3 x 3 take 2 to 2.6 ns a number so in programs without fusion emitters
(`core/programs/compile_options.py`), and 0.6 by its copy of matrices (`turned.py`).

Steps of ResNet-18 before and after, by turns (2026-11-27, 2 cores of an EPYC with AVX-512): 8
images of 96^2 98 ms, 77; 2 of 224^2 142, 108; 8 of 32^2 53, 27; 32 of 32^2 42.3, 41.5. The gradient
by the input has the weight in an order that costs little. Activations are not turned so: nets took
0.92 to 1.08 of the time.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from torch_xdist.ops.conv_forms import Window, native, transpose_of
from torch_xdist.ops.turned import turned

# Elements of a weight. Smaller ones are in a cache whatever the order.
LARGE = 2**16


def direct(
    x: jax.Array, w: jax.Array, window: Window, accumulate: jnp.dtype | None = None
) -> jax.Array:
    """x [n, c, *in], w [o, c, *kernel] -> [n, o, *out]."""
    o, c, *kernel = w.shape
    return native(x, out_last(w).reshape(*kernel, c, o), window, accumulate, weight="*IO")


def weight_gradient(
    grad: jax.Array, x: jax.Array, shape: Sequence[int], window: Window
) -> jax.Array:
    """grad [n, o, *out], x [n, c, *in] -> the gradient of the weight, which has `shape`."""
    o, c, *kernel = shape

    found = transpose_of(lambda w: native(x, w, window, weight="I*O"), grad, (c, *kernel, o))
    return out_first(found).reshape(shape)


def out_last(weight: jax.Array) -> jax.Array:
    """[o, c, *kernel] -> [taps, c, o]: a copy of a matrix, and rows of o numbers in their order."""
    o, c = weight.shape[:2]
    return _turned(weight.reshape(o, -1)).reshape(c, -1, o).swapaxes(0, 1)


def out_first(by_channel: jax.Array) -> jax.Array:
    """[c, ..., o] -> [o, c, ...]."""
    *rest, o = by_channel.shape
    return _turned(by_channel.reshape(-1, o)).reshape(o, *rest)


def _turned(matrix: jax.Array) -> jax.Array:
    """The transpose of a matrix, made by a copy if it is large."""
    return matrix.T if matrix.size < LARGE else turned(matrix)
