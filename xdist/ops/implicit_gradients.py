"""Gradients of samples with respect to their distribution's parameters.

A sample x of a distribution with function F(x; a) moves with a by -(dF/da) / (dF/dx). For Beta
and Dirichlet this follows the approximations torch uses on the CPU, region by region.
"""

import jax
import jax.numpy as jnp

from torch_xdist.ops.operands import opmath
from torch_xdist.ops.table import lowers

# Coefficients of the rational correction: [numerator or denominator, power of log x, power of
# log(alpha / x), power of the rest].
_CORRECTION = (
    (
        (
            (1.003668233, -0.01061107488, -0.0657888334, 0.01201642863),
            (0.6336835991, -0.3557432599, 0.05486251648, -0.001465281033),
            (-0.03276231906, 0.004474107445, 0.002429354597, -0.0001557569013),
        ),
        (
            (0.221950385, -0.3187676331, 0.01799915743, 0.01074823814),
            (-0.2951249643, 0.06219954479, 0.01535556598, 0.001550077057),
            (0.02155310298, 0.004170831599, 0.001292462449, 6.976601077e-05),
        ),
        (
            (-0.05980841433, 0.008441916499, 0.01085618172, 0.002319392565),
            (0.02911413504, 0.01400243777, -0.002721828457, 0.000751041181),
            (0.005900514878, -0.001936558688, -9.495446725e-06, 5.385558597e-05),
        ),
    ),
    (
        (
            (1.0, -0.02924021934, -0.04438342661, 0.007285809825),
            (0.6357567472, -0.3473456711, 0.05454656494, -0.002407477521),
            (-0.03301322327, 0.004845219414, 0.00231480583, -0.0002307248149),
        ),
        (
            (0.5925320577, -0.1757678135, 0.01505928619, 0.000564515273),
            (0.1014815858, -0.06589186703, 0.01272886114, -0.0007316646956),
            (-0.007258481865, 0.001096195486, 0.0003934994223, -4.12701925e-05),
        ),
        (
            (0.06469649321, -0.0236701437, 0.002902096474, -5.896963079e-05),
            (0.001925008108, -0.002869809258, 0.0008000589141, -6.063713228e-05),
            (-0.0003477407336, 6.959756487e-05, 1.097287507e-05, -1.650964693e-06),
        ),
    ),
)


@lowers("aten._standard_gamma_grad.default")
@opmath
def standard_gamma_grad(self: jax.Array, output: jax.Array) -> jax.Array:
    alpha, sample = jnp.broadcast_arrays(self, output)
    return jax.lax.random_gamma_grad(alpha, sample)


def _zero_for_nan(x: jax.Array) -> jax.Array:
    return jnp.where(x != x, 0, x)


def _alpha_near_zero(x: jax.Array, alpha: jax.Array, beta: jax.Array) -> jax.Array:
    """The derivative by alpha, by a Taylor series around x = 0."""
    factor = jax.lax.digamma(alpha) - jax.lax.digamma(alpha + beta) - jnp.log(x)
    term = jnp.ones_like(x)
    series = (factor + 1 / alpha) / alpha
    for order in range(1, 11):
        term = term * (order - beta) * x / order
        series = series + term / (alpha + order) * (factor + 1 / (alpha + order))
    return _zero_for_nan(x * jax.lax.pow(1 - x, -beta) * series)


def _beta_near_zero(x: jax.Array, alpha: jax.Array, beta: jax.Array) -> jax.Array:
    """The derivative by beta, by a Taylor series around x = 0."""
    factor = jax.lax.digamma(alpha + beta) - jax.lax.digamma(beta)
    term, product, slope = jnp.ones_like(x), jnp.ones_like(x), jnp.zeros_like(x)
    series = factor / alpha
    for order in range(1, 9):
        term = term * -x / order
        slope = slope * (beta - order) + product
        product = product * (beta - order)
        series = series + term / (alpha + order) * (slope + factor * product)
    return _zero_for_nan(-jax.lax.pow(1 - x, 1 - beta) * series)


def _near_mean(x: jax.Array, alpha: jax.Array, beta: jax.Array) -> jax.Array:
    """For large parameters and x close to the mean, where the expansion has a singularity."""
    total, square = alpha + beta, beta * beta
    inner = (453 + 1620 * beta * (1 - x) - 455 * x) * beta
    inner = inner + alpha * (8 * (1 - x) * (135 * beta - 11))
    inner = 3 * (59 + 180 * beta - 90 * x) * square + alpha * inner
    inner = (43 + 20 * (16 + 27 * beta) * x) * square * beta + alpha * inner
    polynomial = 47 * x * square * square + alpha * inner
    above = (1 + 12 * alpha) * (1 + 12 * beta) / (total * total)
    below = 12960 * alpha * alpha * alpha * square * (1 + 12 * total)
    return above / (1 - x) * polynomial / below


def _stirling(x: jax.Array) -> jax.Array:
    return 1 + 1 / (12 * x) + 1 / (288 * x * x)


def _far_from_mean(x: jax.Array, alpha: jax.Array, beta: jax.Array) -> jax.Array:
    """For large parameters, by a saddle point expansion."""
    total = alpha + beta
    scale = -x / jnp.sqrt(2 * alpha * beta / total)
    stirling = _stirling(alpha) * _stirling(beta) / _stirling(total)
    apart = alpha * (x - 1) + beta * x
    first = 2 * alpha * alpha * (x - 1) + alpha * beta * (x - 1) - x * beta * beta
    first = first / (jnp.sqrt(2 * alpha / beta) * total * jnp.sqrt(total) * apart * apart)
    second = 0.5 * jnp.log(alpha / (total * x))
    third = jnp.sqrt(8 * alpha * beta / total) / apart
    base = beta * jnp.log(beta / (total * (1 - x))) + alpha * jnp.log(alpha / (total * x))
    fourth = jax.lax.pow(base, jnp.full_like(base, -1.5))
    signed = jnp.where(x < alpha / total, fourth, -fourth)
    return stirling * scale * (first + second * (third + signed))


def _alpha_large(x: jax.Array, alpha: jax.Array, beta: jax.Array) -> jax.Array:
    """The derivative by alpha where both parameters are large."""
    total = alpha + beta
    spread = jnp.sqrt(alpha * beta / (total + 1)) / total
    near = jnp.abs(x - alpha / total) <= 0.1 * spread
    return jnp.where(near, _near_mean(x, alpha, beta), _far_from_mean(x, alpha, beta))


def _alpha_between(x: jax.Array, alpha: jax.Array, total: jax.Array) -> jax.Array:
    """The derivative by alpha elsewhere: an approximation times a rational correction."""
    first = jnp.log(x)
    second = jnp.log(alpha) - first
    rest = jnp.log(total) - second
    sums = []
    for part in _CORRECTION:
        value = jnp.zeros_like(x)
        for i, row in enumerate(part):
            for j, (c0, c1, c2, c3) in enumerate(row):
                cubic = c0 + rest * (c1 + rest * (c2 + rest * c3))
                value = value + first**i * second**j * cubic
        sums.append(value)
    rough = x * (jax.lax.digamma(total) - jax.lax.digamma(alpha)) / (total - alpha)
    return sums[0] / sums[1] * rough


@lowers("aten._dirichlet_grad.default")
def dirichlet_grad(x: jax.Array, alpha: jax.Array, total: jax.Array) -> jax.Array:
    x, alpha, total = (part.astype(jnp.float64) for part in (x, alpha, total))
    beta = total - alpha
    boundary = total * x * (1 - x)
    value = jnp.where(
        (alpha > 6) & (beta > 6), _alpha_large(x, alpha, beta), _alpha_between(x, alpha, total)
    )
    at_one = (x >= 0.5) & (boundary < 0.75)
    value = jnp.where(at_one, -_beta_near_zero(1 - x, beta, alpha), value)
    at_zero = (x <= 0.5) & (boundary < 2.5)
    return jnp.where(at_zero, _alpha_near_zero(x, alpha, beta), value)
