"""Orthogonal polynomials of torch.special: at x, of the degree given by each entry of n.

A negative degree gives zero; degrees are truncated to whole numbers. Each family is a recurrence
(p, q, k) -> next, run to the largest degree and stopped where an entry's own degree is reached.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from torch_xdist.ops.operands import Number, scalar
from torch_xdist.ops.table import add_rows

Step = Callable[[jax.Array, jax.Array, jax.Array, jax.Array], jax.Array]
Closed = Callable[[jax.Array, jax.Array], jax.Array]


def _recurrence(x: jax.Array, n: jax.Array, linear: jax.Array, step: Step) -> jax.Array:
    """The polynomial of degree n: 1, `linear`, then step(x, p, q, k) for k = 1 .. n - 1."""

    def more(state: tuple[jax.Array, ...]) -> jax.Array:
        return jnp.any(state[0] < n)

    def advance(state: tuple[jax.Array, ...]) -> Any:
        k, before, last = state
        following = step(x, before, last, k.astype(x.dtype))
        going = k < n
        return k + 1, jnp.where(going, last, before), jnp.where(going, following, last)

    start = (jnp.ones((), jnp.int64), jnp.ones_like(x), linear)
    value = jax.lax.while_loop(more, advance, start)[2]
    return jnp.where(n < 0, 0, jnp.where(n == 0, 1, value))


def _double_step(x: jax.Array, before: jax.Array, last: jax.Array, k: jax.Array) -> jax.Array:
    return 2 * x * last - before


def _chebyshev(
    x: jax.Array, n: jax.Array, linear: jax.Array, closed: Closed, above: int
) -> jax.Array:
    """A Chebyshev polynomial; inside (-1, 1) a high degree is computed by its angle."""
    by_angle = (n > above) & (jnp.abs(x) < 1)
    stepwise = _recurrence(x, jnp.where(by_angle, 0, n), linear, _double_step)
    angle = jnp.arccos(jnp.clip(x, -1, 1))
    return jnp.where(by_angle, closed(n.astype(x.dtype), angle), stepwise)


def chebyshev_t(x: jax.Array, n: jax.Array) -> jax.Array:
    """Of the first kind."""
    return _chebyshev(x, n, x, lambda n, angle: jnp.cos(n * angle), 6)


def chebyshev_u(x: jax.Array, n: jax.Array) -> jax.Array:
    """Of the second kind."""
    return _chebyshev(x, n, 2 * x, lambda n, angle: jnp.sin((n + 1) * angle) / jnp.sin(angle), 8)


def chebyshev_v(x: jax.Array, n: jax.Array) -> jax.Array:
    """Of the third kind."""
    return _chebyshev(
        x, n, 2 * x - 1, lambda n, angle: jnp.cos((n + 0.5) * angle) / jnp.cos(angle / 2), 8
    )


def chebyshev_w(x: jax.Array, n: jax.Array) -> jax.Array:
    """Of the fourth kind."""
    return _chebyshev(
        x, n, 2 * x + 1, lambda n, angle: jnp.sin((n + 0.5) * angle) / jnp.sin(angle / 2), 8
    )


def _shifted(polynomial: Closed) -> Closed:
    return lambda x, n: polynomial(2 * x - 1, n)


def hermite_h(x: jax.Array, n: jax.Array) -> jax.Array:
    """Hermite polynomials as physicists scale them; nan above the degree that overflows."""
    limit = 128 if x.dtype == jnp.float32 else 512
    value = _recurrence(x, jnp.minimum(n, limit), 2 * x, lambda x, p, q, k: 2 * x * q - 2 * k * p)
    return jnp.where(n > limit, jnp.nan, value)


def hermite_he(x: jax.Array, n: jax.Array) -> jax.Array:
    """Hermite polynomials as probabilists scale them; nan above the degree that overflows."""
    limit = 128 if x.dtype == jnp.float32 else 512
    value = _recurrence(x, jnp.minimum(n, limit), x, lambda x, p, q, k: x * q - k * p)
    return jnp.where(n > limit, jnp.nan, value)


def laguerre_l(x: jax.Array, n: jax.Array) -> jax.Array:
    """Laguerre polynomials."""
    value = _recurrence(x, n, 1 - x, lambda x, p, q, k: ((2 * k + 1 - x) * q - k * p) / (k + 1))
    return jnp.where((x == 0) & (n >= 0), 1, value)


def legendre_p(x: jax.Array, n: jax.Array) -> jax.Array:
    """Legendre polynomials."""
    return _recurrence(x, n, x, lambda x, p, q, k: ((2 * k + 1) * x * q - k * p) / (k + 1))


def _rows(name: str, polynomial: Closed) -> None:
    """The three overloads: both arrays, or one of them a number."""

    def of_arrays(x: jax.Array, n: jax.Array) -> jax.Array:
        x, n = jnp.broadcast_arrays(x, n)
        return polynomial(x, n.astype(jnp.int64))

    def of_degree(x: jax.Array, n: Number) -> jax.Array:
        return of_arrays(x, scalar(n, x))

    def of_place(x: Number, n: jax.Array) -> jax.Array:
        return of_arrays(scalar(x, n), n)

    add_rows(
        {
            f"aten.special_{name}.default": of_arrays,
            f"aten.special_{name}.n_scalar": of_degree,
            f"aten.special_{name}.x_scalar": of_place,
        }
    )


_KINDS = {"t": chebyshev_t, "u": chebyshev_u, "v": chebyshev_v, "w": chebyshev_w}
for _kind, _polynomial in _KINDS.items():
    _rows(f"chebyshev_polynomial_{_kind}", _polynomial)
    _rows(f"shifted_chebyshev_polynomial_{_kind}", _shifted(_polynomial))
_rows("hermite_polynomial_h", hermite_h)
_rows("hermite_polynomial_he", hermite_he)
_rows("laguerre_polynomial_l", laguerre_l)
_rows("legendre_polynomial_p", legendre_p)
