"""Convolutions of groups as products over all groups at once, where each has few positions.

Group by group such a program is thousands of kernels, of which each computes almost nothing: the
first three steps of a RegNetY with 408 groups took 32 s, and take 11. `conv_rules.py` says where a
CPU computes so.
"""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from torch_xdist.ops.conv_columns import put_together
from torch_xdist.ops.conv_forms import Window, columns_of, out_sizes, padded
from torch_xdist.ops.operands import wide


def direct(x: jax.Array, w: jax.Array, window: Window) -> jax.Array:
    """x [n, c, *in], w [o, c / groups, *kernel] -> [n, o, *out], in the dtype that sums have."""
    n, (o, per_group, *kernel) = x.shape[0], w.shape
    out = out_sizes(x.shape[2:], kernel, window)
    # [groups, taps x channels, samples x positions]
    columns = _columns(x, kernel, out, window)
    by_tap = w.reshape(window.groups, -1, per_group, math.prod(kernel)).swapaxes(2, 3)
    by_tap = by_tap.reshape(window.groups, -1, columns.shape[1])
    product = jnp.matmul(by_tap, columns, preferred_element_type=wide(x.dtype))
    return product.reshape(o, n, *out).swapaxes(0, 1)


def input_gradient(
    grad: jax.Array, w: jax.Array, shape: Sequence[int], window: Window
) -> jax.Array:
    """grad [n, o, *out], w [o, c / groups, *kernel] -> the gradient of the input, of `shape`."""
    per_group, kernel = w.shape[1], w.shape[2:]
    flat = _by_group(grad, window)
    # [groups, taps x channels, o / groups]
    by_tap = w.reshape(window.groups, flat.shape[1], -1).swapaxes(1, 2)
    columns = jnp.matmul(by_tap, flat, preferred_element_type=wide(grad.dtype))
    columns = columns.reshape(window.groups, per_group, math.prod(kernel), -1)
    columns = jnp.moveaxis(columns, 2, 0).reshape(-1, shape[1], len(grad), *grad.shape[2:])
    return put_together(columns, kernel, shape, window).astype(grad.dtype)


def weight_gradient(
    grad: jax.Array, x: jax.Array, shape: Sequence[int], window: Window
) -> jax.Array:
    """grad [n, o, *out], x [n, c, *in] -> the gradient of the weight, which has `shape`."""
    (o, per_group), kernel = shape[:2], shape[2:]
    columns = _columns(x, kernel, grad.shape[2:], window).swapaxes(1, 2)
    product = jnp.matmul(_by_group(grad, window), columns, preferred_element_type=wide(x.dtype))
    return product.astype(x.dtype).reshape(o, -1, per_group).swapaxes(1, 2).reshape(shape)


def _by_group(x: jax.Array, window: Window) -> jax.Array:
    """[n, channels, *sizes] -> [groups, channels of each, samples x positions]."""
    channels = x.shape[1]
    return x.swapaxes(0, 1).reshape(window.groups, channels // window.groups, -1)


def _columns(x: jax.Array, kernel: Sequence[int], out: Sequence[int], window: Window) -> jax.Array:
    """What the taps see: [groups, taps x channels of each, samples x positions]."""
    n, c = x.shape[:2]
    whole = padded(x, window.padding, window.high).swapaxes(0, 1)
    by_group = whole.reshape(window.groups, c // window.groups, n, *whole.shape[2:])
    found = columns_of(by_group, kernel, out, window, at=1)
    return found.reshape(window.groups, -1, n * math.prod(out))
