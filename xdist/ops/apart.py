"""The rows of an array, each by itself, so that what reads them is compiled once for all.

XLA compiles kernels of one form once, and a constant place is part of the form: what reads row 3 is
another kernel than what reads row 4. So places are values here that XLA does not know.
"""

import jax
import jax.numpy as jnp
from jax import lax


def rows(stacked: jax.Array) -> list[jax.Array]:
    """Each row along dim 0 of an array [n, ...], in order, of shape [...]."""
    # One by one: of an array of places each would be read at a constant one.
    return [row(stacked, place) for place in range(stacked.shape[0])]


def row(stacked: jax.Array, place: int) -> jax.Array:
    """One of them."""
    return lax.dynamic_index_in_dim(stacked, unknown(place), keepdims=False)


def unknown(place: int) -> jax.Array:
    """A place, of which XLA does not know where it is: uint32 []."""
    return lax.optimization_barrier(jnp.uint32(place))
