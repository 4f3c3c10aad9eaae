"""The rows of an array, each by itself, so that what reads them is compiled once for all.

XLA compiles kernels of one form once, and a constant place is part of the form: what reads row 3 is
another kernel than what reads row 4. So on CPUs, where kernels take most of the time to compile,
places are values that XLA does not know. Elsewhere they are constants.
"""

import jax
import jax.numpy as jnp
from jax import lax


def rows(stacked: jax.Array) -> list[jax.Array]:
    """Each row along dim 0 of an array [n, ...], in order, of shape [...]."""
    found: list[jax.Array] = lax.platform_dependent(
        stacked, cpu=_at_counted_places, default=lambda stacked: [*stacked]
    )
    return found


def _at_counted_places(stacked: jax.Array) -> list[jax.Array]:
    # One from the other: of an array of places each would be read at a constant one.
    place = lax.optimization_barrier(jnp.zeros((), jnp.uint32))
    found = []
    for _ in range(stacked.shape[0]):
        found.append(lax.dynamic_index_in_dim(stacked, place, keepdims=False))
        place = lax.optimization_barrier(place + 1)
    return found
