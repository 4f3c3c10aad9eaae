"""Special functions: gamma and error functions and their relatives.

Operands arrive as float32 or float64; the result has their broadcast shape.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np

from torch_xdist.ops import incomplete_gamma
from torch_xdist.ops.operands import number_first, with_number
from torch_xdist.ops.table import add_rows, lowers


def digamma(self: jax.Array) -> jax.Array:
    """The logarithmic derivative of gamma; infinite at zero, nan at negative whole numbers."""
    pole = jnp.copysign(jnp.inf, -self)
    value = jax.lax.digamma(jnp.where(self == 0, 1, self))
    return jnp.where(self == 0, pole, value)


def _trigamma(self: jax.Array) -> jax.Array:
    """The derivative of digamma, reflected below one half, by an asymptotic series above six."""
    reflected = self < 0.5
    x = jnp.where(reflected, 1 - self, self)
    total = jnp.zeros_like(x)
    for _ in range(6):
        total = total + 1 / (x * x)
        x = x + 1
    y = 1 / (x * x)
    series = 1 / 6 - y * (1 / 30 - y * (1 / 42 - y * (1 / 30)))
    total = total + (1 + 1 / (2 * x) + y * series) / x
    sine = jnp.sin(np.pi * self)
    return jnp.where(reflected, -total + (np.pi / sine) ** 2, total)


@lowers("aten.polygamma.default")
def polygamma(n: int, self: jax.Array) -> jax.Array:
    if n == 0:
        return digamma(self)
    if n == 1:
        return _trigamma(self)
    sign = 1.0 if n % 2 else -1.0
    return sign * math.factorial(n) * zeta(jnp.full_like(self, n + 1), self)


def _negative_terms(s: jax.Array, q: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The terms of Hurwitz zeta below zero, and the positive rest of q they lead to."""

    def more(state: tuple[jax.Array, jax.Array]) -> jax.Array:
        return jnp.any(state[1] < 0)

    def add_term(state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        total, place = state
        term = jax.lax.pow(place, -s)
        below = place < 0
        return jnp.where(below, total + term, total), jnp.where(below, place + 1, place)

    # A large negative q would take as many rounds; beyond this, its terms are below rounding.
    start = jnp.where(q < -1e4, jnp.nan, q)
    return jax.lax.while_loop(more, add_term, (jnp.zeros_like(q), start))


def zeta(self: jax.Array, other: jax.Array) -> jax.Array:
    """Hurwitz zeta, the sum of (k + other)^-self for k >= 0; infinite at its poles."""
    s, q = jnp.broadcast_arrays(self, other)
    # XLA has it for positive q only.
    below, rest = _negative_terms(s, q)
    value = below + jax.lax.zeta(s, rest)
    whole = q == jnp.floor(q)
    value = jnp.where((q <= 0) & ~whole & (s != jnp.floor(s)), jnp.nan, value)
    value = jnp.where((q <= 0) & whole, jnp.inf, value)
    return jnp.where(s == 1, jnp.inf, jnp.where(s < 1, jnp.nan, value))


@lowers("aten.mvlgamma.default")
def mvlgamma(self: jax.Array, p: int) -> jax.Array:
    halves = -0.5 * jnp.arange(p, dtype=self.dtype)
    constant = p * (p - 1) / 4 * math.log(math.pi)
    return jnp.sum(jax.lax.lgamma(self[..., None] + halves), axis=-1) + constant


def _erfcx_tail(x: jax.Array) -> jax.Array:
    """exp(x^2) erfc(x) for x >= 5, by its continued fraction."""
    fraction = x
    for term in range(20, 0, -1):
        fraction = x + term / 2 / fraction
    return 1 / (math.sqrt(np.pi) * fraction)


@lowers("aten.special_erfcx.default")
def erfcx(self: jax.Array) -> jax.Array:
    # In float32, exp(x^2) alone would lose more digits than torch's polynomials do.
    x = self.astype(jnp.float64)
    middle = jnp.exp(x * x) * jax.lax.erfc(jnp.minimum(x, 5))
    return jnp.where(x < 5, middle, _erfcx_tail(jnp.maximum(x, 5)))


@lowers("aten.special_entr.default")
def entr(self: jax.Array) -> jax.Array:
    positive = -self * jnp.log(jnp.where(self > 0, self, 1))
    value = jnp.where(self > 0, positive, jnp.where(self == 0, 0, -jnp.inf))
    return jnp.where(self != self, self, value)


@lowers("aten.special_log_ndtr.default")
def log_ndtr(self: jax.Array) -> jax.Array:
    scaled = self / math.sqrt(2.0)
    far = jnp.log(erfcx(jnp.maximum(-scaled, 0)) / 2) - scaled * scaled
    near = jnp.log1p(-jax.lax.erfc(scaled) / 2)
    return jnp.where(self < -1, far, near)


def erfinv(self: jax.Array) -> jax.Array:
    """The inverse of erf; infinite at one and minus one."""
    # Near one a gradient magnifies the last bit, which single precision gets wrong.
    wide = jax.lax.erf_inv(self.astype(jnp.float64))
    return wide.astype(self.dtype)


def ndtri(self: jax.Array) -> jax.Array:
    """The inverse of the normal distribution function."""
    return jax.scipy.special.ndtri(self)


add_rows(
    {
        "aten.digamma.default": digamma,
        "aten.erf.default": jax.lax.erf,
        "aten.erfc.default": jax.lax.erfc,
        "aten.erfinv.default": erfinv,
        "aten.igamma.default": incomplete_gamma.lower,
        "aten.igammac.default": incomplete_gamma.upper,
        "aten.lgamma.default": jax.lax.lgamma,
        "aten.special_ndtri.default": ndtri,
        "aten.special_zeta.default": zeta,
        "aten.special_zeta.other_scalar": with_number(zeta),
        "aten.special_zeta.self_scalar": number_first(zeta),
    }
)
