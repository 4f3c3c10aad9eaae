"""Functions of many numbers of float32 that a CPU computes in double precision.

XLA:CPU calls C's function for each number: 524,288 sines take 1.7 ms, remainders 4.3, arcus
cosines 4.1. Polynomials in double precision take 0.15 to 0.4 ms for them, eager torch 0.22 to 0.31
(two cores of an EPYC with AVX-512, 2026-11-28), and are rounded once: sines are within 0.53 of a
unit in the last place, XLA's within 0.56, torch's within 0.60.

The polynomials are those of fdlibm (Sun Microsystems, 1993; netlib.org/fdlibm: k_sin.c, k_cos.c,
s_atan.c), cut where double precision needs more of them than float32 does.
"""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Function = Callable[..., jax.Array]

# Of fewer numbers XLA's own take some microseconds.
_MANY = 2**14
# Half of pi in two parts: the first has 33 bits, so a whole number of 20 bits times it is exact.
_HALF_PI = (1.57079632673412561417, 6.07710050650619224932e-11)
_LARGEST_ANGLE = 2.0**20
_SIN = (
    -1.66666666666666324348e-01,
    8.33333333332248946124e-03,
    -1.98412698298579493134e-04,
    2.75573137070700676789e-06,
)
_COS = (
    4.16666666666666019037e-02,
    -1.38888888888741095749e-03,
    2.48015872894767294178e-05,
    -2.75573143513906633035e-07,
)
_ATAN = (
    3.33333333333329318027e-01,
    -1.99999999998764832476e-01,
    1.42857142725034663711e-01,
    -1.11111104054623557880e-01,
    9.09088713343650656196e-02,
    -7.69187620504482999495e-02,
    6.66107313738753120669e-02,
    -5.83357013379057348645e-02,
    4.97687799461593236017e-02,
    -3.65315727442169155270e-02,
    1.62858201153657823623e-02,
)
# A quotient of so many bits times a number of 24 bits is exact.
_LARGEST_QUOTIENT = 2.0**28


def _in_double(plain: Function, wide: Function, fits: Function | None = None) -> Function:
    """`plain` of many numbers of float32 by `wide`, which sees them in double precision.

    Args:
        fits: of the operands as they are, whether `wide` is right for all of them; None: it is.
    """

    def quick(*operands: jax.Array) -> jax.Array:
        return wide(*[x.astype(jnp.float64) for x in operands]).astype(jnp.float32)

    def on_cpu(*operands: jax.Array) -> jax.Array:
        if fits is None:
            return quick(*operands)
        found: jax.Array = lax.cond(fits(*operands), quick, plain, *operands)
        return found

    @jax.custom_jvp
    def function(*operands: jax.Array) -> jax.Array:
        found: jax.Array = lax.platform_dependent(*operands, cpu=on_cpu, default=plain)
        return found

    @function.defjvp
    def of_both(
        operands: Sequence[jax.Array], tangents: Sequence[jax.Array]
    ) -> tuple[jax.Array, jax.Array]:
        return function(*operands), jax.jvp(plain, operands, tangents)[1]

    def chosen(*operands: jax.Array) -> jax.Array:
        operands = tuple(jnp.broadcast_arrays(*operands))
        is_many = all(x.dtype == jnp.float32 and _are_many(x) for x in operands)
        return function(*operands) if is_many else plain(*operands)

    return chosen


def _are_many(x: jax.Array) -> bool:
    # Exported programs have dims without a number.
    return all(isinstance(n, int) for n in x.shape) and x.size >= _MANY


def _polynomial(x: jax.Array, factors: Sequence[float]) -> jax.Array:
    found = jnp.full_like(x, factors[-1])
    for factor in reversed(factors[:-1]):
        found = found * x + factor
    return found


# ---- angles ------------------------------------------------------------------------------------


def _quarters(x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """How many quarter turns an angle has, and sine and cosine of what is left of it."""
    turns = jnp.round(x * (2 / np.pi))
    left = jnp.where(turns == 0, x, (x - turns * _HALF_PI[0]) - turns * _HALF_PI[1])
    square = left * left
    sine = left * (1 + square * _polynomial(square, _SIN))
    cosine = 1 - 0.5 * square + square * square * _polynomial(square, _COS)
    return turns.astype(jnp.int32), sine, cosine


def _sine_from(quarter: int) -> Function:
    """The sine of so many quarter turns more."""

    def sine_of(x: jax.Array) -> jax.Array:
        quarters, sine, cosine = _quarters(x)
        quarters = quarters + quarter
        found = jnp.where(quarters & 1 == 1, cosine, sine)
        return jnp.where(quarters & 2 == 2, -found, found)

    return sine_of


def _tangent(x: jax.Array) -> jax.Array:
    quarters, sine, cosine = _quarters(x)
    is_odd = quarters & 1 == 1
    return jnp.where(is_odd, -cosine, sine) / jnp.where(is_odd, sine, cosine)


def _are_small_angles(x: jax.Array) -> jax.Array:
    # A nan, which the maximum may pass over, has none either way.
    return jnp.max(jnp.abs(x)) < _LARGEST_ANGLE


def _angle(y: jax.Array, x: jax.Array) -> jax.Array:
    """The angle of (x, y)."""
    near, far = jnp.minimum(abs(x), abs(y)), jnp.maximum(abs(x), abs(y))
    ratio = jnp.where(far == 0, 0, near / jnp.where(far == 0, 1, far))
    ratio = jnp.where(jnp.isinf(near), 1, ratio)
    # Above the tangent of pi / 8 that of what is left to pi / 4.
    is_above = ratio > np.tan(np.pi / 8)
    left = jnp.where(is_above, (ratio - 1) / (ratio + 1), ratio)
    square = left * left
    found = left * (1 - square * _polynomial(square, _ATAN)) + jnp.where(is_above, np.pi / 4, 0)
    found = jnp.where(abs(y) > abs(x), np.pi / 2 - found, found)
    return jnp.copysign(jnp.where(jnp.signbit(x), np.pi - found, found), y)


def _other_side(x: jax.Array) -> jax.Array:
    return jnp.sqrt(1 - x * x)


# ---- division ----------------------------------------------------------------------------------


def _rest(a: jax.Array, b: jax.Array) -> jax.Array:
    """What is left of `a` after a whole number of `b`, with the sign of `a`; exact."""
    rest = a - jnp.trunc(a / b) * b
    # The quotient was rounded up to the next whole number.
    is_over = (rest != 0) & ((rest < 0) != (a < 0))
    rest = jnp.where(is_over, rest + jnp.copysign(b, a), rest)
    rest = jnp.where(jnp.isinf(b) & jnp.isfinite(a), a, rest)
    return jnp.copysign(rest, a)


def _have_small_quotients(a: jax.Array, b: jax.Array) -> jax.Array:
    # What is no number has no rest either way, and a maximum may pass over it.
    over = jnp.abs(a) - jnp.abs(b) * _LARGEST_QUOTIENT
    return jnp.max(jnp.where(jnp.isnan(over), 0, over)) < 0


sin = _in_double(jnp.sin, _sine_from(0), _are_small_angles)
cos = _in_double(jnp.cos, _sine_from(1), _are_small_angles)
tan = _in_double(jnp.tan, _tangent, _are_small_angles)
arctan2 = _in_double(jnp.arctan2, _angle)
arctan = _in_double(jnp.arctan, lambda x: _angle(x, jnp.ones_like(x)))
arcsin = _in_double(jnp.arcsin, lambda x: _angle(x, _other_side(x)))
arccos = _in_double(jnp.arccos, lambda x: _angle(_other_side(x), x))
rem = _in_double(lax.rem, _rest, _have_small_quotients)
