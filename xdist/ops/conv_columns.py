"""Gradients of a convolution as one matrix product, over columns of what the taps see.

A column holds what each tap of the kernel sees of each channel at one position: [taps x channels,
samples x positions] for all of them. `conv_rules.py` says where a CPU computes so.
"""

import itertools
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from torch_xdist.ops.conv_forms import Window, added, padded, placed, taps
from torch_xdist.ops.conv_turned import out_first, out_last
from torch_xdist.ops.operands import wide


def spread_input_gradient(
    grad: jax.Array, w: jax.Array, shape: Sequence[int], window: Window
) -> jax.Array:
    """grad [n, o, *out], w [o, c, *kernel] -> the gradient of the input, which has `shape`.

    The columns of the gradient are one product; each tap's part of them is added where it lies.
    """
    n, c = shape[:2]
    o, _, *kernel = w.shape
    out = grad.shape[2:]
    # [o, c, taps] -> [taps, c, o]; [n, o, *out] -> [o, n, *out]
    by_tap = out_last(w).reshape(-1, o)
    flat = jnp.moveaxis(grad, 1, 0).reshape(o, -1)
    columns = jnp.matmul(by_tap, flat, preferred_element_type=wide(grad.dtype))
    columns = columns.reshape(-1, c, n, *out)
    return put_together(columns, kernel, shape, window).astype(grad.dtype)


def put_together(
    columns: jax.Array, kernel: Sequence[int], shape: Sequence[int], window: Window
) -> jax.Array:
    """columns [taps, c, n, *out], each tap's share of an input of `shape` -> [n, c, *in]."""
    padding = zip(shape[2:], window.padding, window.high)
    reached = [size + low + high for size, low, high in padding]
    shares = [
        placed(part, tap, reached, window)
        for tap, part in zip(itertools.product(*map(range, kernel)), columns)
    ]
    found = padded(added(shares), [-p for p in window.padding], [-h for h in window.high])
    return jnp.moveaxis(found, 0, 1)


def gathered_weight_gradient(
    grad: jax.Array, x: jax.Array, shape: Sequence[int], window: Window
) -> jax.Array:
    """grad [n, o, *out], x [n, c, *in] -> the gradient of the weight, which has `shape`."""
    o, c, *kernel = shape
    out = grad.shape[2:]
    by_channel = jnp.moveaxis(padded(x, window.padding, window.high), 1, 0)
    seen = jnp.stack([part for _, part in taps(by_channel, kernel, out, window)])
    columns = seen.reshape(math.prod(kernel) * c, -1)
    flat = jnp.moveaxis(grad, 1, -1).reshape(-1, o)
    product = jnp.matmul(columns, flat, preferred_element_type=wide(x.dtype))
    return out_first(product.astype(x.dtype).reshape(-1, c, o).swapaxes(0, 1)).reshape(shape)
