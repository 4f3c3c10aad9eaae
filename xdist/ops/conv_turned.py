"""Convolutions of large weights on a CPU, where XLA has the channels last in all that it convolves.

It turns weights [o, c, *kernel] around by itself, number by number; here `turned.py` does. The
gradient by the input has the weight in an order that costs little. `conv_rules.py` says where.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from torch_xdist.ops.conv_forms import Window, native
from torch_xdist.ops.turned import out_first, out_last


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

    def value(weight: jax.Array) -> jax.Array:
        return native(x, weight, window, weight="I*O")

    by_channel = jax.ShapeDtypeStruct((c, *kernel, o), grad.dtype)
    return out_first(jax.linear_transpose(value, by_channel)(grad)[0]).reshape(shape)
