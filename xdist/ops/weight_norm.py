"""Weight norm: a direction `v` and a length `g` for each slice of a weight, forward and backward.

Slices are along one dim, the first or the last. Half precision is computed in float32.
"""

import jax
import jax.numpy as jnp

from torch_xdist.ops.operands import widened
from torch_xdist.ops.table import lowers


def _others(v: jax.Array, dim: int) -> tuple[int, ...]:
    return tuple(axis for axis in range(v.ndim) if axis != dim % v.ndim)


@lowers("aten._weight_norm_interface.default", shaped=True)
def weight_norm_interface(v: jax.Array, g: jax.Array, dim: int = 0) -> tuple[jax.Array, jax.Array]:
    """(the weight, the norms of the slices of `v`, in the shape of `g`)."""
    wide_v = widened(v)
    norms = jnp.sqrt(jnp.square(wide_v).sum(_others(v, dim), keepdims=True))
    # As on the CPU: of halves, the norms that the gradient reads stay float32.
    return (wide_v * (widened(g) / norms)).astype(v.dtype), norms


@lowers("aten._weight_norm_interface_backward.default", shaped=True)
def weight_norm_interface_backward(
    grad_w: jax.Array, saved_v: jax.Array, saved_g: jax.Array, saved_norms: jax.Array, dim: int
) -> tuple[jax.Array, jax.Array]:
    grad, v, g, norms = map(widened, (grad_w, saved_v, saved_g, saved_norms))
    along = (grad * v).sum(_others(v, dim), keepdims=True)
    return g / norms * (grad - v * along / jnp.square(norms)), along / norms
