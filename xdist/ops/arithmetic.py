"""Arithmetic lowerings: sums, products, quotients, remainders, powers and their kin.

Operands arrive promoted to one dtype and broadcast against each other; the result has the
broadcast shape.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp

from torch_xdist.ops import in_double
from torch_xdist.ops.operands import (
    Number,
    convert,
    is_complex,
    is_float,
    is_integral,
    number_first,
    opmath,
    scalar,
    with_number,
)
from torch_xdist.ops.table import add_rows, lowers


def _times(other: jax.Array, alpha: Number) -> jax.Array:
    """`alpha * other`; the default of one costs nothing."""
    if isinstance(alpha, int) and alpha == 1:
        return other
    return jnp.multiply(scalar(alpha, other), other)


@lowers("aten.add.Tensor")
def add(self: jax.Array, other: jax.Array, alpha: Number = 1) -> jax.Array:
    return jnp.add(self, _times(other, alpha))


@lowers("aten.sub.Tensor")
def sub(self: jax.Array, other: jax.Array, alpha: Number = 1) -> jax.Array:
    return jnp.subtract(self, _times(other, alpha))


@lowers("aten.rsub.Scalar")
def rsub(self: jax.Array, other: Number, alpha: Number = 1) -> jax.Array:
    return jnp.subtract(scalar(other, self), _times(self, alpha))


@lowers("aten.rsub.Tensor")
def rsub_array(self: jax.Array, other: jax.Array, *, alpha: Number = 1) -> jax.Array:
    # Not promoted by torch: the caller's rounding does the rest.
    common = jnp.result_type(self, other)
    return sub(convert(other, common), convert(self, common), alpha)


@lowers("aten._add_relu.Tensor")
def add_relu(self: jax.Array, other: jax.Array, *, alpha: Number = 1) -> jax.Array:
    return jnp.maximum(add(self, other, alpha), 0)


def _float_floor_div(self: jax.Array, other: jax.Array) -> jax.Array:
    """The floor of the exact quotient, which may lie one below that of the rounded quotient."""
    remainder = in_double.rem(self, other)
    quotient = (self - remainder) / other
    quotient = jnp.where(
        (remainder != 0) & ((other < 0) != (remainder < 0)), quotient - 1, quotient
    )
    floor = jnp.floor(quotient)
    floor = jnp.where(quotient - floor > 0.5, floor + 1, floor)
    zero = jnp.copysign(jnp.zeros((), self.dtype), self / other)
    return jnp.where(other == 0, self / other, jnp.where(quotient != 0, floor, zero))


def floor_div(self: jax.Array, other: jax.Array) -> jax.Array:
    """Division rounded towards minus infinity."""
    if is_integral(self):
        return jnp.floor_divide(self, other)
    return _float_floor_div(*jnp.broadcast_arrays(self, other))


def trunc_div(self: jax.Array, other: jax.Array) -> jax.Array:
    """Division rounded towards zero."""
    if is_integral(self):
        return jax.lax.div(*jnp.broadcast_arrays(self, other))
    return jnp.trunc(self / other)


@lowers("aten.div.Tensor_mode")
def div(self: jax.Array, other: Number, *, rounding_mode: str | None = None) -> jax.Array:
    # torch gives Python numbers to this overload too.
    other = scalar(other, self)
    if rounding_mode == "floor":
        return floor_div(self, other)
    return trunc_div(self, other) if rounding_mode == "trunc" else jnp.true_divide(self, other)


@lowers("aten.floor_divide.default", "aten.floor_divide.Scalar")
@opmath
def floor_divide(self: jax.Array | Number, other: jax.Array | Number) -> jax.Array:
    # Not tagged pointwise by torch, so the operands come as they are, also a number first.
    if isinstance(self, jax.Array) and isinstance(other, int | bool):
        return floor_div(self, scalar(other, self))
    common = jnp.result_type(self, other)
    return floor_div(convert(jnp.asarray(self), common), convert(jnp.asarray(other), common))


def remainder(self: jax.Array, other: jax.Array) -> jax.Array:
    """The rest of floor division: its sign is that of the divisor."""
    rest = fmod(self, other)
    if is_integral(rest) and jnp.issubdtype(rest.dtype, jnp.unsignedinteger):
        return rest
    return jnp.where((rest != 0) & ((other < 0) != (rest < 0)), rest + other, rest)


def fmod(self: jax.Array, other: jax.Array) -> jax.Array:
    """The rest of truncated division: its sign is that of the dividend."""
    return in_double.rem(self, other)


def _integer_pow(self: jax.Array, exponent: jax.Array) -> jax.Array:
    """Integer powers with wrap-around; negative exponents as integer division has them."""
    self, exponent = jnp.broadcast_arrays(self, exponent)
    if self.dtype == jnp.bool_:
        return self | ~exponent

    def more(state: tuple[jax.Array, jax.Array, jax.Array]) -> jax.Array:
        return jnp.any(state[2] > 0)

    def square(state: tuple[jax.Array, jax.Array, jax.Array]) -> Any:
        product, base, rest = state
        product = jnp.where(rest & 1 == 1, product * base, product)
        return product, base * base, rest >> 1

    power, _, _ = jax.lax.while_loop(more, square, (jnp.ones_like(self), self, exponent))
    odd = exponent & 1 == 1
    inverse = jnp.where((self == -1) & odd, -1, jnp.where(jnp.abs(self) == 1, 1, 0))
    if jnp.issubdtype(self.dtype, jnp.unsignedinteger):
        return power
    return jnp.where(exponent < 0, inverse.astype(self.dtype), power)


def _complex_pow(self: jax.Array, exponent: jax.Array) -> jax.Array:
    # exp(e log 0) is nan in XLA, where C's cpow gives one for e = 0 and else zero.
    power = jax.lax.pow(self, exponent)
    at_zero = jnp.where(exponent == 0, 1, 0).astype(self.dtype)
    return jnp.where((self == 0) & (exponent.real >= 0), at_zero, power)


@lowers("aten.pow.Tensor_Tensor")
def power(self: jax.Array, exponent: jax.Array) -> jax.Array:
    if is_integral(self):
        return _integer_pow(self, exponent)
    self, exponent = jnp.broadcast_arrays(self, exponent)
    return _complex_pow(self, exponent) if is_complex(self) else jax.lax.pow(self, exponent)


_EASY_POWERS = {
    0.5: jnp.sqrt,
    1.0: lambda x: x,
    2.0: lambda x: x * x,
    3.0: lambda x: x * x * x,
    -0.5: jax.lax.rsqrt,
    -1.0: lambda x: 1 / x,
    -2.0: lambda x: 1 / (x * x),
}


@lowers("aten.pow.Tensor_Scalar")
def power_of_tensor(self: jax.Array, exponent: Number) -> jax.Array:
    if isinstance(exponent, (int, float)) and not is_integral(self) and exponent in _EASY_POWERS:
        return _EASY_POWERS[exponent](self)
    return power(self, scalar(exponent, self))


@lowers("aten.lerp.Tensor")
def lerp(self: jax.Array, end: jax.Array, weight: jax.Array) -> jax.Array:
    # Counted from the nearer end, so that weights 0 and 1 give exactly the ends.
    step = end - self
    return jnp.where(jnp.abs(weight) < 0.5, self + weight * step, end - step * (1 - weight))


@lowers("aten.lerp.Scalar")
def lerp_by_number(self: jax.Array, end: jax.Array, weight: Number) -> jax.Array:
    return lerp(self, end, scalar(weight, self))


@lowers("aten.addcmul.default")
def addcmul(
    self: jax.Array, tensor1: jax.Array, tensor2: jax.Array, *, value: Number = 1
) -> jax.Array:
    return self + _times(tensor1, value) * tensor2


@lowers("aten.addcdiv.default")
def addcdiv(
    self: jax.Array, tensor1: jax.Array, tensor2: jax.Array, *, value: Number = 1
) -> jax.Array:
    return self + _times(tensor1, value) / tensor2


@lowers("aten.ldexp.Tensor")
def ldexp(self: jax.Array, other: jax.Array) -> jax.Array:
    return self * power(jnp.full_like(other, 2), other)


@lowers("aten.frexp.Tensor")
def frexp(self: jax.Array) -> tuple[jax.Array, jax.Array]:
    mantissa, exponent = jnp.frexp(self)
    return mantissa, exponent.astype(jnp.int32)


@lowers("aten.heaviside.default")
def heaviside(self: jax.Array, values: jax.Array) -> jax.Array:
    # A step at nan: torch gives zero, jnp.heaviside nan.
    return jnp.where(self == 0, values, (self > 0).astype(values.dtype))


def gcd(self: jax.Array, other: jax.Array) -> jax.Array:
    """The greatest common divisor; of the smallest integer of a dtype what torch gives.

    `jnp.gcd` compares the two in each round, and never ends with the smallest integer of a dtype.
    """

    def is_left(pair: tuple[jax.Array, jax.Array]) -> jax.Array:
        return (pair[0] != 0).any()

    def divided(pair: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        divisor, found = pair
        divides = divisor != 0
        rest = jax.lax.rem(found, jnp.where(divides, divisor, 1))
        return jnp.where(divides, rest, 0), jnp.where(divides, divisor, found)

    first, second = jnp.broadcast_arrays(jnp.abs(self), jnp.abs(other))
    return jax.lax.while_loop(is_left, divided, (first, second))[1]


def lcm(self: jax.Array, other: jax.Array) -> jax.Array:
    """The least common multiple; zero where one operand is zero."""
    dtype, common = self.dtype, gcd(self, other)
    # As in C, in which torch has it: below 32 bits the product has 32, and is cut off at the end.
    wide = jnp.promote_types(dtype, jnp.int32)
    self, other, common = (part.astype(wide) for part in (self, other, common))
    divided = jax.lax.div(*jnp.broadcast_arrays(self, jnp.where(common == 0, 1, common)))
    return jnp.abs(divided * other).astype(dtype)


@lowers("aten.xlogy.Tensor")
def xlogy(self: jax.Array, other: jax.Array) -> jax.Array:
    product = jnp.where(self == 0, 0, self * jnp.log(other))
    return jnp.where(jnp.isnan(other), jnp.nan, product)


@lowers("aten.special_xlog1py.default")
def xlog1py(self: jax.Array, other: jax.Array) -> jax.Array:
    product = jnp.where(self == 0, 0, self * jnp.log1p(other))
    return jnp.where(jnp.isnan(other), jnp.nan, product)


def logaddexp(self: jax.Array, other: jax.Array) -> jax.Array:
    """The logarithm of the sum of two exponentials."""
    if not is_complex(self):
        return jnp.logaddexp(self, other)
    # JAX turns the imaginary part back into one circle, torch leaves it with the larger operand.
    larger = self.real >= other.real
    top, low = jnp.where(larger, self, other), jnp.where(larger, other, self)
    infinite = jnp.isinf(top.real) & (top.real == low.real)
    apart = jnp.where(infinite, 0, low - top)
    both = jnp.log(jnp.exp(self) + jnp.exp(other))
    return jnp.where(infinite, jnp.where(top.real < 0, low, both), top + jnp.log1p(jnp.exp(apart)))


def logaddexp2(self: jax.Array, other: jax.Array) -> jax.Array:
    """The logarithm to base two of the sum of two powers of two."""
    scale = math.log(2.0)
    return jnp.logaddexp(self * scale, other * scale) / scale


@lowers("aten.__lshift__.Tensor", "aten.bitwise_left_shift.Tensor")
def left_shift(self: jax.Array, other: jax.Array) -> jax.Array:
    if is_float(self):
        return ldexp(self, other)
    # Shifts by more than the width, or by a negative number, leave nothing.
    bits = self.dtype.itemsize * 8
    inside = (other >= 0) & (other < bits)
    return jnp.where(inside, self << jnp.where(inside, other, 0), 0)


@lowers("aten.__rshift__.Tensor", "aten.bitwise_right_shift.Tensor")
def right_shift(self: jax.Array, other: jax.Array) -> jax.Array:
    if is_float(self):
        return ldexp(self, -other)
    # A shift that is too wide, or negative, leaves the sign.
    signed = jnp.issubdtype(self.dtype, jnp.signedinteger)
    bits = self.dtype.itemsize * 8
    inside = (other >= 0) & (other < bits)
    widest = self >> (bits - 1) if signed else jnp.zeros_like(self)
    return jnp.where(inside, self >> jnp.where(inside, other, 0), widest)


def copysign(self: jax.Array, other: jax.Array) -> jax.Array:
    """The magnitude of `self` with the sign of `other`, minus zero included."""
    return jnp.copysign(self, other)


_BINARY = {
    "atan2.default": in_double.arctan2,
    "div.Tensor": jnp.true_divide,
    "fmax.default": jnp.fmax,
    "fmin.default": jnp.fmin,
    "gcd.default": gcd,
    "hypot.default": jnp.hypot,
    "lcm.default": lcm,
    "logaddexp.default": logaddexp,
    "logaddexp2.default": logaddexp2,
    "maximum.default": jnp.maximum,
    "minimum.default": jnp.minimum,
    "mul.Tensor": jnp.multiply,
    "nextafter.default": jnp.nextafter,
    "copysign.Tensor": copysign,
    "fmod.Tensor": fmod,
    "remainder.Tensor": remainder,
}
add_rows({f"aten.{name}": lowering for name, lowering in _BINARY.items()})
add_rows(
    {
        "aten.add.Scalar": with_number(add),
        "aten.sub.Scalar": with_number(sub),
        "aten.mul.Scalar": with_number(jnp.multiply),
        "aten.div.Scalar": with_number(jnp.true_divide),
        "aten.div.Scalar_mode": with_number(div),
        "aten._add_relu.Scalar": with_number(add_relu),
        "aten.fmod.Scalar": with_number(fmod),
        "aten.remainder.Scalar": with_number(remainder),
        "aten.remainder.Scalar_Tensor": number_first(remainder),
        "aten.copysign.Scalar": with_number(copysign),
        "aten.pow.Scalar": number_first(power),
        "aten.xlogy.Scalar_Other": with_number(xlogy),
        "aten.xlogy.Scalar_Self": number_first(xlogy),
        "aten.special_xlog1py.other_scalar": with_number(xlog1py),
        "aten.special_xlog1py.self_scalar": number_first(xlog1py),
        "aten.__lshift__.Scalar": with_number(left_shift),
        "aten.__rshift__.Scalar": with_number(right_shift),
        "aten.bitwise_left_shift.Tensor_Scalar": with_number(left_shift),
        "aten.bitwise_left_shift.Scalar_Tensor": number_first(left_shift),
        "aten.bitwise_right_shift.Tensor_Scalar": with_number(right_shift),
        "aten.bitwise_right_shift.Scalar_Tensor": number_first(right_shift),
    }
)
