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
from torch_xdist.ops.conv_forms import Window, out_sizes, padded, taps
from torch_xdist.ops.operands import wide


def direct(x: jax.Array, w: jax.Array, window: Window) -> jax.Array:
    """x [n, c, *in], w [o, c / groups, *kernel] -> [n, o, *out], in the dtype that sums have."""
    n, (o, per_group, *kernel) = x.shape[0], w.shape
    out = out_sizes(x.shape[2:], kernel, window)
    # [groups, taps x channels, samples x positions]
    columns = jnp.concatenate(_seen(x, kernel, out, window), 1)
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
    flat = _by_group(grad, window)
    seen = _seen(x, shape[2:], grad.shape[2:], window)
    products = [
        jnp.einsum("gop,gcp->goc", flat, part, preferred_element_type=wide(x.dtype))
        for part in seen
    ]
    return jnp.stack(products, -1).astype(x.dtype).reshape(shape)


def _by_group(x: jax.Array, window: Window) -> jax.Array:
    """[n, channels, *sizes] -> [groups, channels of each, samples x positions]."""
    channels = x.shape[1]
    return x.swapaxes(0, 1).reshape(window.groups, channels // window.groups, -1)


def _seen(
    x: jax.Array, kernel: Sequence[int], out: Sequence[int], window: Window
) -> list[jax.Array]:
    """What each tap sees: [groups, channels of each, samples x positions]."""
    whole = padded(x, window.padding, window.high)
    return [_by_group(part, window) for _, part in taps(whole, kernel, out, window)]
