"""The order of elements: where each of a sorted row came from.

Keys are integers that sort as torch sorts (a nan above every number, 0 equal to -0), packed with
their position into one 64-bit integer. XLA sorts one such array several times faster than pairs of
a float and a position, and it makes the order stable. 64-bit keys go in two passes, as in a radix
sort: by the low half, then by the high half. A TPU, which has no such integer (see positions.py),
sorts keys, positions and elements side by side: what it would gather afterwards costs it more.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_xdist.ops.positions import narrowed, width

_HALF_BITS = 32


def sorted_along(
    self: jax.Array, dim: int, descending: bool = False
) -> tuple[jax.Array, jax.Array]:
    """The array in order along `dim`, and the place that each element had; equals in order."""
    if width(self.shape[dim]) == jnp.int32:
        return _side_by_side(self, dim, descending)
    places = order_along(self, dim, descending)
    return along(self, places, dim), places


def _side_by_side(self: jax.Array, dim: int, descending: bool) -> tuple[jax.Array, jax.Array]:
    keys = integer_keys(self)
    places = lax.broadcasted_iota(jnp.int32, self.shape, dim)
    operands = (~keys if descending else keys, places, self)
    _, places, found = lax.sort(operands, dimension=dim, is_stable=False, num_keys=2)
    return found, places


def order_along(self: jax.Array, dim: int, descending: bool = False) -> jax.Array:
    """[...]: the place along `dim` of each element of the sorted array; equals in order."""
    if width(self.shape[dim]) == jnp.int32:
        return _side_by_side(self, dim, descending)[1]
    keys = integer_keys(self)
    keys = ~keys if descending else keys
    places = lax.broadcasted_iota(jnp.int64, self.shape, dim)
    if keys.dtype == jnp.int32:
        return _positions(keys.astype(jnp.int64), places, dim)
    low = (keys & (2**_HALF_BITS - 1)) - 2 ** (_HALF_BITS - 1)
    first = _positions(low, places, dim)
    high = along(keys >> _HALF_BITS, first, dim)
    return along(first, _positions(high, places, dim), dim)


def along(x: jax.Array, places: jax.Array, dim: int) -> jax.Array:
    """The elements of x at the given places along `dim`."""
    places = narrowed(places, x.shape[dim])
    return jnp.take_along_axis(x, places, dim, mode="promise_in_bounds")


def _positions(keys: jax.Array, places: jax.Array, dim: int) -> jax.Array:
    """The places in order of 32-bit keys held as int64."""
    packed = (keys << _HALF_BITS) | places
    ordered = lax.sort(packed, dimension=dim, is_stable=False)
    return ordered & (2**_HALF_BITS - 1)


def integer_keys(x: jax.Array) -> jax.Array:
    """int32 or int64 keys in the order of x."""
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return _keys_of_integers(x)
    if x.dtype.itemsize < 4:
        x = x.astype(jnp.float32)
    # Both zeros are one key (XLA drops an addition of 0), and all nans.
    x = jnp.where(x != x, jnp.full_like(x, jnp.nan), jnp.where(x == 0, jnp.zeros_like(x), x))
    whole = jnp.int32 if x.dtype == jnp.float32 else jnp.int64
    bits = lax.bitcast_convert_type(x, whole)
    return jnp.where(bits < 0, bits ^ jnp.iinfo(whole).max, bits)


def _keys_of_integers(x: jax.Array) -> jax.Array:
    if x.dtype == jnp.uint64:
        return lax.bitcast_convert_type(x ^ np.uint64(2**63), jnp.int64)
    wide = x.dtype in (jnp.int64, jnp.uint32)
    return x.astype(jnp.int64 if wide else jnp.int32)
