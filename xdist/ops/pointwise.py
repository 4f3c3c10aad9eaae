"""Unary pointwise lowerings: elementary functions, rounding, signs and casts.

The operand arrives in the dtype torch computes in: integers as float32 where the result is a
float, halves as float32. The result has the operand's shape.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from torch_xdist.ops import in_double
from torch_xdist.ops.operands import convert, is_complex, is_integral
from torch_xdist.ops.table import add_rows, lowers


def _integers_stay(rounding: Callable[[jax.Array], jax.Array]) -> Callable[[jax.Array], jax.Array]:
    """`rounding`, but the identity on integers (which jnp would turn into floats)."""
    return lambda self: self if is_integral(self) else rounding(self)


def sign(self: jax.Array) -> jax.Array:
    """-1, 0 or 1; zero for nan, where jnp.sign gives nan."""
    if self.dtype == jnp.bool_:
        return self
    return (self > 0).astype(self.dtype) - (self < 0).astype(self.dtype)


def sgn(self: jax.Array) -> jax.Array:
    """The sign; for complex numbers the direction, and zero for zero."""
    if not is_complex(self):
        return sign(self)
    size = jnp.abs(self)
    # By a complex number XLA divides in five times as many operations.
    parts = [part / jnp.where(size == 0, 1, size) for part in (self.real, self.imag)]
    return jax.lax.complex(*(jnp.where(size == 0, 0, part) for part in parts))


def frac(self: jax.Array) -> jax.Array:
    """What truncation takes away, with the sign of the operand."""
    return self - jnp.trunc(self)


def reciprocal(self: jax.Array) -> jax.Array:
    """One divided by the operand."""
    return 1 / self


def sinc(self: jax.Array) -> jax.Array:
    """sin(pi x) / (pi x), and one at zero."""
    scaled = np.pi * self
    return jnp.where(self == 0, 1, jnp.sin(scaled) / jnp.where(self == 0, 1, scaled))


def exp2(self: jax.Array) -> jax.Array:
    """Two to the power of the operand; exact for whole numbers."""
    return jax.lax.pow(jnp.full_like(self, 2), self)


def angle(self: jax.Array) -> jax.Array:
    """The argument of a complex number; 0 or pi for a real one, nan for nan."""
    if is_complex(self):
        return in_double.arctan2(self.imag, self.real)
    return jnp.where(self != self, self, jnp.where(self < 0, np.pi, 0).astype(self.dtype))


def neg(self: jax.Array) -> jax.Array:
    """The negative; unsigned integers wrap around."""
    return jnp.negative(self)


add_rows(
    {
        "aten.abs.default": jnp.abs,
        "aten.acos.default": in_double.arccos,
        "aten.acosh.default": jnp.arccosh,
        "aten.angle.default": angle,
        "aten.asin.default": in_double.arcsin,
        "aten.asinh.default": jnp.arcsinh,
        "aten.atan.default": in_double.arctan,
        "aten.atanh.default": jnp.arctanh,
        "aten.ceil.default": _integers_stay(jnp.ceil),
        "aten.cos.default": in_double.cos,
        "aten.cosh.default": jnp.cosh,
        "aten.deg2rad.default": lambda self: self * (np.pi / 180),
        "aten.exp.default": jnp.exp,
        "aten.exp2.default": exp2,
        "aten.expm1.default": jnp.expm1,
        "aten.floor.default": _integers_stay(jnp.floor),
        "aten.frac.default": frac,
        "aten.log.default": jnp.log,
        "aten.log10.default": jnp.log10,
        "aten.log1p.default": jnp.log1p,
        "aten.log2.default": jnp.log2,
        "aten.neg.default": neg,
        "aten.rad2deg.default": lambda self: self * (180 / np.pi),
        "aten.reciprocal.default": reciprocal,
        "aten.rsqrt.default": jax.lax.rsqrt,
        "aten.sgn.default": sgn,
        "aten.sigmoid.default": jax.nn.sigmoid,
        "aten.sign.default": sign,
        "aten.sin.default": in_double.sin,
        "aten.sinc.default": sinc,
        "aten.sinh.default": jnp.sinh,
        "aten.sqrt.default": jnp.sqrt,
        "aten.square.default": jnp.square,
        "aten.tan.default": in_double.tan,
        "aten.tanh.default": jnp.tanh,
        "aten.trunc.default": _integers_stay(jnp.trunc),
        "aten.round.default": _integers_stay(jnp.round),
    }
)


@lowers("aten.round.decimals")
def round_decimals(self: jax.Array, *, decimals: int) -> jax.Array:
    if is_integral(self):
        return self
    scale = 10.0 ** abs(decimals)
    return jnp.round(self * scale) / scale if decimals >= 0 else jnp.round(self / scale) * scale


@lowers(
    "aten.positive.default",
    "aten._lazy_clone.default",
)
def same(self: jax.Array, **_: Any) -> jax.Array:
    return self


@lowers("aten._to_copy.default")
def to_copy(self: jax.Array, *, dtype: torch.dtype | None = None, **_: Any) -> jax.Array:
    return self if dtype is None else convert(self, dtype)


@lowers("aten.zero.default")
def zero(self: jax.Array) -> jax.Array:
    return jnp.zeros_like(self)
