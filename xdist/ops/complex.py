"""Complex numbers: their making, their parts and their conjugates."""

import jax
import jax.numpy as jnp

from torch_xdist.ops.operands import widened
from torch_xdist.ops.table import add_rows, lowers


def _real_pair(first: jax.Array, second: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Both arrays broadcast, in one dtype JAX makes complex numbers of."""
    first, second = jnp.broadcast_arrays(widened(first), widened(second))
    common = jnp.result_type(first, second)
    return first.astype(common), second.astype(common)


@lowers("aten.complex.default")
def complex_of_parts(real: jax.Array, imag: jax.Array) -> jax.Array:
    return jax.lax.complex(*_real_pair(real, imag))


@lowers("aten.polar.default")
def polar(abs: jax.Array, angle: jax.Array) -> jax.Array:
    size, angle = _real_pair(abs, angle)
    return jax.lax.complex(size * jnp.cos(angle), size * jnp.sin(angle))


add_rows(
    {
        "aten._conj_physical.default": jnp.conj,
        "aten.conj_physical.default": jnp.conj,
    }
)
