"""Bessel functions and the Airy function, by the approximations of the Cephes library.

Each takes a float32 or float64 array and gives one of its shape. Outside the domain they are nan.
"""

import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from torch_xdist.ops import bessel_coefficients as table
from torch_xdist.ops.table import add_rows, lowers

_TWO_OVER_PI = 2 / np.pi
_ROOT_OF_TWO_OVER_PI = math.sqrt(2 / np.pi)
_INVERSE_ROOT_OF_PI = 1 / math.sqrt(np.pi)
# The squares of the first two positive zeros of J0 and of J1.
_ZEROS_J0 = (5.78318596294678452118, 30.4712623436620863991)
_ZEROS_J1 = (14.6819706421238932572, 49.2184563216946036703)


def polynomial(x: jax.Array, coefficients: Sequence[float]) -> jax.Array:
    """The polynomial with these coefficients, highest power first, at x."""
    value = jnp.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        value = value * x + coefficient
    return value


def ratio(x: jax.Array, above: Sequence[float], below: Sequence[float]) -> jax.Array:
    """The quotient of two polynomials at x."""
    return polynomial(x, above) / polynomial(x, below)


def _chebyshev(x: jax.Array, coefficients: Sequence[float]) -> jax.Array:
    """A Chebyshev series on [-2, 2], highest order first, by Clenshaw's recurrence."""
    before = last = jnp.zeros_like(x)
    value = jnp.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        before, last = last, value
        value = x * last - before + coefficient
    return 0.5 * (value - before)


def _waves(
    x: jax.Array, order: int, first: Callable[..., jax.Array], second: Callable[..., jax.Array]
) -> tuple[jax.Array, jax.Array]:
    """Modulus times `first` and phase times `second` of the angle, for x above five."""
    square = (5 / x) * (5 / x)
    if order == 0:
        modulus = ratio(square, table.J0_MODULUS_P, table.J0_MODULUS_Q)
        phase = ratio(square, table.J0_PHASE_P, table.J0_PHASE_Q)
    else:
        modulus = ratio(square, table.J1_MODULUS_P, table.J1_MODULUS_Q)
        phase = ratio(square, table.J1_PHASE_P, table.J1_PHASE_Q)
    angle = x - (0.25 + 0.5 * order) * np.pi
    scale = _ROOT_OF_TWO_OVER_PI / jnp.sqrt(x)
    return modulus * first(angle) * scale, 5 / x * phase * second(angle) * scale


def bessel_j0(self: jax.Array) -> jax.Array:
    """The Bessel function of the first kind of order zero."""
    x = jnp.abs(self)
    square = x * x
    small = ratio(square, table.J0_SMALL_P, table.J0_SMALL_Q)
    small = (square - _ZEROS_J0[0]) * (square - _ZEROS_J0[1]) * small
    small = jnp.where(x < 1e-5, 1 - square / 4, small)
    cosine, sine = _waves(jnp.maximum(x, 5), 0, jnp.cos, jnp.sin)
    return jnp.where(x <= 5, small, cosine - sine)


def bessel_j1(self: jax.Array) -> jax.Array:
    """The Bessel function of the first kind of order one."""
    x = jnp.abs(self)
    square = x * x
    small = ratio(square, table.J1_SMALL_P, table.J1_SMALL_Q) * x
    small = small * (square - _ZEROS_J1[0]) * (square - _ZEROS_J1[1])
    cosine, sine = _waves(jnp.maximum(x, 5), 1, jnp.cos, jnp.sin)
    return jnp.where(self < 0, -1, 1) * jnp.where(x <= 5, small, cosine - sine)


def _at_zero(self: jax.Array, pole: float, value: jax.Array) -> jax.Array:
    """`value`, but `pole` at zero and nan below it."""
    return jnp.where(self == 0, pole, jnp.where(self < 0, jnp.nan, value))


def bessel_y0(self: jax.Array) -> jax.Array:
    """The Bessel function of the second kind of order zero."""
    square = self * self
    small = ratio(square, table.Y0_SMALL_P, table.Y0_SMALL_Q)
    small = small + _TWO_OVER_PI * jnp.log(self) * bessel_j0(self)
    sine, cosine = _waves(jnp.maximum(self, 5), 0, jnp.sin, jnp.cos)
    return _at_zero(self, -jnp.inf, jnp.where(self <= 5, small, sine + cosine))


def bessel_y1(self: jax.Array) -> jax.Array:
    """The Bessel function of the second kind of order one."""
    square = self * self
    small = self * ratio(square, table.Y1_SMALL_P, table.Y1_SMALL_Q)
    small = small + _TWO_OVER_PI * (bessel_j1(self) * jnp.log(self) - 1 / self)
    sine, cosine = _waves(jnp.maximum(self, 5), 1, jnp.sin, jnp.cos)
    return _at_zero(self, -jnp.inf, jnp.where(self <= 5, small, sine + cosine))


def i0(self: jax.Array) -> jax.Array:
    """The modified Bessel function of the first kind of order zero."""
    return jnp.exp(jnp.abs(self)) * jax.lax.bessel_i0e(self)


def i1(self: jax.Array) -> jax.Array:
    """The modified Bessel function of the first kind of order one."""
    return jnp.exp(jnp.abs(self)) * jax.lax.bessel_i1e(self)


def _k0_parts(self: jax.Array) -> tuple[jax.Array, jax.Array]:
    """K0 up to two, and K0 times exp(x) above."""
    small = _chebyshev(self * self - 2, table.K0_SMALL) - jnp.log(0.5 * self) * i0(self)
    large = jnp.maximum(self, 2)
    return small, _chebyshev(8 / large - 2, table.K0_LARGE) / jnp.sqrt(large)


def _k1_parts(self: jax.Array) -> tuple[jax.Array, jax.Array]:
    """K1 up to two, and K1 times exp(x) above."""
    small = jnp.log(0.5 * self) * i1(self) + _chebyshev(self * self - 2, table.K1_SMALL) / self
    large = jnp.maximum(self, 2)
    return small, _chebyshev(8 / large - 2, table.K1_LARGE) / jnp.sqrt(large)


Parts = Callable[[jax.Array], tuple[jax.Array, jax.Array]]


def _k(parts: Parts) -> Callable[[jax.Array], jax.Array]:
    def plain(self: jax.Array) -> jax.Array:
        small, large = parts(self)
        return _at_zero(self, jnp.inf, jnp.where(self <= 2, small, large * jnp.exp(-self)))

    return plain


def _scaled_k(parts: Parts) -> Callable[[jax.Array], jax.Array]:
    def scaled(x: jax.Array) -> jax.Array:
        small, large = parts(x)
        return _at_zero(x, jnp.inf, jnp.where(x <= 2, small * jnp.exp(x), large))

    return scaled


def _airy_series(x: jax.Array) -> jax.Array:
    """The Maclaurin series, for -2.09 <= x < 2.09, where 25 terms reach float64."""
    cube = x * x * x
    first, second = jnp.ones_like(x), x
    even, odd = first, second
    for term in range(1, 26):
        first = first * cube / ((3 * term - 1) * (3 * term))
        second = second * cube / ((3 * term) * (3 * term + 1))
        even, odd = even + first, odd + second
    return 0.355028053887817239260 * even - 0.258819403792806798405 * odd


def _airy_waves(x: jax.Array) -> jax.Array:
    """For x < -2.09, where the function oscillates."""
    depth = -2 * x * jnp.sqrt(-x) / 3
    z = 1 / depth
    sine = 1 + z * z * ratio(z * z, table.AIRY_SINE_P, table.AIRY_SINE_Q)
    cosine = z * ratio(z * z, table.AIRY_COSINE_P, table.AIRY_COSINE_Q)
    angle = depth + 0.25 * np.pi
    waves = jnp.sin(angle) * sine - jnp.cos(angle) * cosine
    return _INVERSE_ROOT_OF_PI / jnp.sqrt(jnp.sqrt(-x)) * waves


def _airy_decay(x: jax.Array) -> jax.Array:
    """For x >= 2.09, where the function decays."""
    depth = 2 * x * jnp.sqrt(x) / 3
    height = _INVERSE_ROOT_OF_PI * ratio(1 / depth, table.AIRY_DECAY_P, table.AIRY_DECAY_Q)
    return height / (2 * jnp.sqrt(jnp.sqrt(x)) * jnp.exp(depth))


@lowers("aten.special_airy_ai.default")
def airy_ai(x: jax.Array) -> jax.Array:
    middle = _airy_series(jnp.clip(x, -2.09, 2.09))
    below = _airy_waves(jnp.minimum(x, -2.09))
    above = jnp.where(x > 103.892, 0, _airy_decay(jnp.maximum(x, 2.09)))
    value = jnp.where(x < -2.09, below, jnp.where(x >= 2.09, above, middle))
    # torch gives nan at both infinities.
    return jnp.where(jnp.isfinite(x), value, jnp.nan)


@lowers("aten.special_spherical_bessel_j0.default")
def spherical_bessel_j0(x: jax.Array) -> jax.Array:
    square = x * x
    # The Taylor series, to the twelfth power.
    near = polynomial(
        square,
        [1 / 6227020800, -1 / 39916800, 1 / 362880, -1 / 5040, 1 / 120, -1 / 6, 1],
    )
    away = jnp.where(jnp.isinf(x), 0, jnp.sin(x) / x)
    return jnp.where(jnp.abs(x) < 0.5, near, away)


add_rows(
    {
        "aten.i0.default": i0,
        "aten.special_bessel_j0.default": bessel_j0,
        "aten.special_bessel_j1.default": bessel_j1,
        "aten.special_bessel_y0.default": bessel_y0,
        "aten.special_bessel_y1.default": bessel_y1,
        "aten.special_i0e.default": jax.lax.bessel_i0e,
        "aten.special_i1.default": i1,
        "aten.special_i1e.default": jax.lax.bessel_i1e,
        "aten.special_modified_bessel_i0.default": i0,
        "aten.special_modified_bessel_i1.default": i1,
        "aten.special_modified_bessel_k0.default": _k(_k0_parts),
        "aten.special_modified_bessel_k1.default": _k(_k1_parts),
        "aten.special_scaled_modified_bessel_k0.default": _scaled_k(_k0_parts),
        "aten.special_scaled_modified_bessel_k1.default": _scaled_k(_k1_parts),
    }
)
