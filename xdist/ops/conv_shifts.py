"""Convolutions of few channels, or of few a group, as sums over what the taps see.

A share is one tap of one channel of a group; XLA for CPUs makes one loop of all shares, where its
own convolution takes a group at a time and few channels badly. Milliseconds of one direction, on
two cores with AVX-512 (2026-11-27), XLA's own, so, and eager torch's (`scripts/bench_ops.py` and
`scripts/bench_convolutions.py` measure others):

    samples x channels in positions, kernel / stride, groups   value         by the input
    4 x 128 x 56^2, 3^2, 32                                    11.3, 1.4, 1.8    16.7, 1.4
    16 x 32 x 32^2, 3^2, 8                                     3.0, 0.33, 0.52
    16 x 256 x 14^2, 3^2, 128                                  12.2, 0.36, 2.4   12.4, 0.34
    8 x 64 x 512, 5, 16                                        1.5, 0.29, 0.26   0.64, 0.17
    2 x 16 x 8 x 28^2, 3^3, 8                                  3.1, 0.46, 1.6    2.1, 0.50
    4 x 128 x 56^2, 3^2 / 2, 32                                2.5, 0.96, 0.55
    8 x 64 x 28^2, 3^2, 8 (72 shares)                          1.0, 0.94, 0.60    2.0, 1.1
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

import jax
import jax.numpy as jnp
from jax import lax

from torch_xdist.ops.conv_forms import Window, added, out_sizes, padded, placed, taps
from torch_xdist.ops.conv_phases import interleaved, padding_of_phase, reach
from torch_xdist.ops.operands import wide


def by_shifts(x: jax.Array, w: jax.Array, window: Window) -> jax.Array:
    """x [n, c, *in], w [o, c / groups, *kernel] -> [n, o, *out], in the dtype that sums have."""
    n, c, *sizes = x.shape
    per_group, kernel = w.shape[1], w.shape[2:]
    groups = c // per_group
    out = out_sizes(sizes, kernel, window)
    x = padded(x, window.padding, window.high).astype(wide(x.dtype))
    factors = w.reshape(groups, -1, per_group, *kernel)
    shares = []
    for tap, seen in taps(x, kernel, out, window):
        seen = seen.reshape(n, groups, 1, per_group, *out)
        for channel in range(per_group):
            factor = factors[(slice(None), slice(None), channel, *tap)]
            shares.append(seen[:, :, :, channel] * factor.reshape(groups, -1, *(1,) * len(out)))
    return added(shares).reshape(n, -1, *out)


def input_gradient_by_shifts(
    grad: jax.Array, w: jax.Array, shape: Sequence[int], window: Window
) -> jax.Array:
    """The gradient by the input, which has `shape`: the same of the kernel turned around."""
    kernel = w.shape[2:]
    turned = jnp.flip(w, range(2, w.ndim)).reshape(window.groups, -1, *w.shape[1:])
    turned = turned.swapaxes(1, 2).reshape(shape[1], -1, *kernel)
    if set(window.stride) != {1}:
        return _by_phases(grad, turned, shape, window).astype(w.dtype)
    reached = [d * (k - 1) for d, k in zip(window.dilation, kernel)]
    low = tuple(r - p for r, p in zip(reached, window.padding))
    high = tuple(r - p for r, p in zip(reached, window.high))
    return by_shifts(grad, turned, replace(window, padding=low, high=high)).astype(w.dtype)


def _by_phases(
    grad: jax.Array, turned: jax.Array, shape: Sequence[int], window: Window
) -> jax.Array:
    """With strides: positions a whole number of them apart see the same taps, of no dilation."""
    first, count = reach(shape, window)
    ones = (1,) * len(count)
    phases = []
    for phase in itertools.product(*map(range, window.stride)):
        # Turned around, every so many taps from the end.
        seen = [
            slice((k - 1 - a) % s, k - a, s)
            for k, a, s in zip(turned.shape[2:], phase, window.stride)
        ]
        part = turned[(slice(None), slice(None), *seen)]
        low, high = padding_of_phase(grad.shape[2:], part.shape[2:], first, count)
        plain = Window(ones, low, high, ones, window.groups)
        phases.append(by_shifts(grad, part, plain))
    stacked = jnp.stack(phases, 2)
    return interleaved(stacked.reshape(*shape[:2], *window.stride, *count), shape, window)


def spread_depthwise_gradient(
    grad: jax.Array, w: jax.Array, shape: Sequence[int], window: Window
) -> jax.Array:
    """The gradient by the input of a depthwise convolution: each tap's share where it saw it."""
    n, c, *sizes = shape
    kernel = w.shape[2:]
    grad = grad.reshape(n, c, -1, *grad.shape[2:])
    per_channel = w.reshape(c, -1, math.prod(kernel))
    per_tap = jnp.einsum(
        "ncm...,cmt->tnc...", grad, per_channel, preferred_element_type=wide(w.dtype)
    )
    reached = [n + p + h for n, p, h in zip(sizes, window.padding, window.high)]
    starts = itertools.product(*map(range, kernel))
    shares = [placed(g, t, reached, window) for t, g in zip(starts, per_tap)]
    spread = added(shares)
    spread = padded(spread, [-p for p in window.padding], [-h for h in window.high])
    return spread.astype(w.dtype)


def weight_gradient_by_shifts(
    grad: jax.Array, x: jax.Array, shape: Sequence[int], window: Window
) -> jax.Array:
    """grad [n, o, *out], x [n, c, *in] -> the gradient of the weight, which has `shape`.

    All shares are summed in one walk. The columns are summed apart: XLA adds what is one sum one
    after the other.
    """
    per_group, kernel = shape[1], shape[2:]
    n, c, *_ = x.shape
    groups, out = c // per_group, grad.shape[2:]
    x = padded(x, window.padding, window.high)
    made = grad.reshape(n, groups, -1, *out).astype(wide(grad.dtype))
    products = []
    for _, seen in taps(x, kernel, out, window):
        seen = seen.reshape(n, groups, per_group, *out)
        products += [made * seen[:, :, i : i + 1] for i in range(per_group)]
    zeros = [jnp.zeros((), product.dtype) for product in products]
    sums = lax.reduce(products, zeros, _add_each, (0, *range(3, made.ndim - 1)))
    # [groups, o / groups, taps x channels] -> [o, channels, taps]
    joined = jnp.stack(sums, 2).sum(-1).reshape(shape[0], -1, per_group)
    return joined.swapaxes(1, 2).astype(x.dtype).reshape(shape)


def _add_each(sums: Sequence[jax.Array], more: Sequence[jax.Array]) -> list[jax.Array]:
    return [one + other for one, other in zip(sums, more)]


def depthwise_weight_gradient(
    grad: jax.Array, x: jax.Array, shape: Sequence[int], window: Window
) -> jax.Array:
    """That of one channel a group, as a sum or a product for each tap."""
    n, c, *_ = x.shape
    out = grad.shape[2:]
    x = padded(x, window.padding, window.high)
    grad = grad.reshape(n, c, -1, *out)
    if grad.shape[2] == 1:
        # The columns are summed apart: XLA adds what is one sum one after the other.
        rows = (0, *range(2, x.ndim - 1))
        single = grad[:, :, 0].astype(wide(grad.dtype))
        sums = [(single * seen).sum(rows) for _, seen in taps(x, shape[2:], out, window)]
        return jnp.stack(sums, 1).sum(-1).astype(x.dtype).reshape(shape)
    seen = jnp.stack([seen for _, seen in taps(x, shape[2:], out, window)], 2)
    positions = math.prod(out)
    seen = seen.reshape(n, c, -1, positions)
    grad = grad.reshape(n, c, -1, positions)
    product = jnp.einsum("ncmp,nctp->ncmt", grad, seen, preferred_element_type=wide(x.dtype))
    return product.sum(0).astype(x.dtype).reshape(shape)
