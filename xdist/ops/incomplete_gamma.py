"""The regularized incomplete gamma functions of broadcast arrays, P(a, x) and Q(a, x) = 1 - P.

JAX sums a series or a fraction, of which it takes 2,000 terms: in float32 P(1e6, 1e6) is 1 % off
so, and of a = 1e10 nothing is left. So it sums in double precision, and from a = 1e5 on the first
terms of the uniform expansion in 1 / a (DLMF 8.12) take its place, whose error is below 1e-9 there.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

_EXPANDED_FROM = 1e5
# Of x / a - 1: below it differences are taken from their series.
_NEAR = 1e-3


def lower(a: jax.Array, x: jax.Array) -> jax.Array:
    """P(a, x)."""
    return _chosen(a, x, jax.scipy.special.gammainc, -1)


def upper(a: jax.Array, x: jax.Array) -> jax.Array:
    """Q(a, x)."""
    return _chosen(a, x, jax.scipy.special.gammaincc, 1)


def _chosen(
    a: jax.Array, x: jax.Array, summed: Callable[[jax.Array, jax.Array], jax.Array], side: int
) -> jax.Array:
    """By the size of `a`; `side` is 1 for what lies above x, -1 for what lies below."""
    dtype = jnp.promote_types(a.dtype, x.dtype)
    a, x = jnp.broadcast_arrays(a.astype(jnp.float64), x.astype(jnp.float64))
    is_large = (a >= _EXPANDED_FROM) & (a < jnp.inf) & (x >= 0) & (x < jnp.inf)
    found = summed(jnp.where(is_large, 1.0, a), jnp.where(is_large, 1.0, x))
    found = jnp.where(is_large, _expanded(jnp.where(is_large, a, 1.0), x, side), found)
    # All of the distribution lies at 0 where a is 0, and at infinity where it is infinite.
    above, below = (1.0, 0.0) if side > 0 else (0.0, 1.0)
    found = jnp.where((a == 0) & (x > 0), below, found)
    found = jnp.where((a == jnp.inf) & (x >= 0), jnp.where(x < jnp.inf, above, jnp.nan), found)
    return found.astype(dtype)


def _expanded(a: jax.Array, x: jax.Array, side: int) -> jax.Array:
    """For large finite a > 0 and x >= 0."""
    far = x / a - 1
    is_near = jnp.abs(far) < _NEAR
    near = jnp.where(is_near, far, 0)
    series = near**2 * (1 / 2 - near * (1 / 3 - near * (1 / 4 - near / 5)))
    exponent = jnp.where(is_near, series, far - jnp.log1p(far))
    root = jnp.sign(far) * jnp.sqrt(2 * exponent)
    apart = jnp.where(is_near, 1, far), jnp.where(is_near, 1, root)
    first = jnp.where(is_near, -1 / 3 + root / 12 - 2 * root**2 / 135, 1 / apart[0] - 1 / apart[1])
    rest = jnp.exp(-a * exponent) / jnp.sqrt(2 * jnp.pi * a) * first
    return jax.scipy.special.erfc(side * root * jnp.sqrt(a / 2)) / 2 + side * rest
