"""Gradients of a convolution as one matrix product, over columns of what the taps see.

A column holds what each tap of the kernel sees of each channel at one position: [taps x channels,
samples x positions] for all of them. `conv_rules.py` says where a CPU computes so.
"""

import itertools
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax

from torch_xdist.ops.conv_forms import Window, added, columns_of, padded, placed
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
    flat = jnp.moveaxis(grad, 1, -1).reshape(-1, o)
    seen = padded(x, window.padding, window.high)
    if _are_apart(out, kernel, window):
        product = jnp.matmul(flat.T, _rows(seen, kernel, out), preferred_element_type=wide(x.dtype))
        return product.astype(x.dtype).reshape(shape)
    columns = columns_of(jnp.moveaxis(seen, 1, 0), kernel, out, window, at=0)
    columns = columns.reshape(math.prod(kernel) * c, -1)
    product = jnp.matmul(columns, flat, preferred_element_type=wide(x.dtype))
    return out_first(product.astype(x.dtype).reshape(-1, c, o).swapaxes(0, 1)).reshape(shape)


def _are_apart(out: Sequence[int], kernel: Sequence[int], window: Window) -> bool:
    """Whether no two positions of the kernel overlap, and nothing lies between them."""
    each = zip(out, kernel, window.stride, window.dilation)
    return all(dilation == 1 and (size == 1 or k == stride) for size, k, stride, dilation in each)


def _rows(x: jax.Array, kernel: Sequence[int], out: Sequence[int]) -> jax.Array:
    """The columns [n x out, c x taps] of x [n, c, *in], turned around, where they are apart.

    In one transpose: a slice for each tap of 7 x 7 took a second to compile.
    """
    (n, c), rank = x.shape[:2], len(out)
    seen = lax.slice(x, (0,) * x.ndim, (n, c, *(size * k for size, k in zip(out, kernel))))
    parts = seen.reshape(n, c, *(part for pair in zip(out, kernel) for part in pair))
    places, within = (range(first, 2 + 2 * rank, 2) for first in (2, 3))
    return parts.transpose(0, *places, 1, *within).reshape(n * math.prod(out), -1)
