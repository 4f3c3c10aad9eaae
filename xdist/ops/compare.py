"""Comparisons, logic, bits, selection and limits.

Operands arrive promoted to one dtype, but for `condition` and `mask`, and broadcast against each
other.
"""

import jax
import jax.numpy as jnp

from torch_xdist.ops.operands import (
    Number,
    convert,
    is_float,
    number_first,
    scalar,
    with_number,
)
from torch_xdist.ops.table import add_rows, lowers

_COMPARISONS = {
    "eq": jnp.equal,
    "ne": jnp.not_equal,
    "lt": jnp.less,
    "le": jnp.less_equal,
    "gt": jnp.greater,
    "ge": jnp.greater_equal,
}
add_rows({f"aten.{name}.Tensor": compare for name, compare in _COMPARISONS.items()})
add_rows({f"aten.{name}.Scalar": with_number(compare) for name, compare in _COMPARISONS.items()})

_BITWISE = {"and": jnp.bitwise_and, "or": jnp.bitwise_or, "xor": jnp.bitwise_xor}
for _name, _bitwise in _BITWISE.items():
    add_rows(
        {
            f"aten.bitwise_{_name}.Tensor": _bitwise,
            f"aten.bitwise_{_name}.Scalar": with_number(_bitwise),
            f"aten.bitwise_{_name}.Scalar_Tensor": number_first(_bitwise),
        }
    )


def signbit(self: jax.Array) -> jax.Array:
    """Whether a number is negative, minus zero included."""
    return jnp.signbit(self) if is_float(self) else self < 0


def isneginf(self: jax.Array) -> jax.Array:
    """Whether a number is minus infinity; no integer is."""
    return self == -jnp.inf if is_float(self) else jnp.zeros(self.shape, bool)


def isposinf(self: jax.Array) -> jax.Array:
    """Whether a number is plus infinity; no integer is."""
    return self == jnp.inf if is_float(self) else jnp.zeros(self.shape, bool)


add_rows(
    {
        "aten.bitwise_not.default": jnp.bitwise_not,
        "aten.isinf.default": jnp.isinf,
        "aten.isnan.default": lambda self: self != self,
        "aten.isneginf.default": isneginf,
        "aten.isposinf.default": isposinf,
        "aten.logical_and.default": jnp.logical_and,
        "aten.logical_not.default": jnp.logical_not,
        "aten.logical_or.default": jnp.logical_or,
        "aten.logical_xor.default": jnp.logical_xor,
        "aten.signbit.default": signbit,
    }
)


@lowers("aten.where.self")
def where(condition: jax.Array, self: jax.Array, other: jax.Array) -> jax.Array:
    return jnp.where(condition.astype(bool), self, other)


@lowers("aten.masked_fill.Scalar", "aten.masked_fill.Tensor")
def masked_fill(self: jax.Array, mask: jax.Array, value: Number) -> jax.Array:
    return jnp.where(mask.astype(bool), scalar(value, self), self)


@lowers("aten._masked_scale.default")
def masked_scale(self: jax.Array, mask: jax.Array, scale: float) -> jax.Array:
    return self * mask.astype(self.dtype) * scale


def _limit(bound: Number | None, like: jax.Array) -> jax.Array | None:
    return None if bound is None else scalar(bound, like)


@lowers("aten.clamp.default", "aten.clamp.Tensor")
def clamp(self: jax.Array, min: Number | None = None, max: Number | None = None) -> jax.Array:
    # The upper bound wins where the bounds cross; a nan anywhere stays.
    lower, upper = _limit(min, self), _limit(max, self)
    at_least = self if lower is None else jnp.maximum(self, lower)
    return at_least if upper is None else jnp.minimum(at_least, upper)


@lowers("aten.clamp_min.default", "aten.clamp_min.Tensor")
def clamp_min(self: jax.Array, min: Number) -> jax.Array:
    return jnp.maximum(self, scalar(min, self))


@lowers("aten.clamp_max.default", "aten.clamp_max.Tensor")
def clamp_max(self: jax.Array, max: Number) -> jax.Array:
    return jnp.minimum(self, scalar(max, self))


def _replacement(number: float | None, default: float, like: jax.Array) -> jax.Array:
    return scalar(default if number is None else number, like)


@lowers("aten.nan_to_num.default")
def nan_to_num(
    self: jax.Array,
    nan: float | None = None,
    posinf: float | None = None,
    neginf: float | None = None,
) -> jax.Array:
    if jnp.issubdtype(self.dtype, jnp.complexfloating):
        real = nan_to_num(self.real, nan, posinf, neginf)
        return jax.lax.complex(real, nan_to_num(self.imag, nan, posinf, neginf))
    if not is_float(self):
        return self
    limits = jnp.finfo(self.dtype)
    finite = jnp.where(self != self, _replacement(nan, 0.0, self), self)
    finite = jnp.where(self == jnp.inf, _replacement(posinf, float(limits.max), self), finite)
    return jnp.where(self == -jnp.inf, _replacement(neginf, float(limits.min), self), finite)


@lowers("aten._is_all_true.default")
def is_all_true(self: jax.Array) -> jax.Array:
    return jnp.all(self)


@lowers("aten._is_any_true.default")
def is_any_true(self: jax.Array) -> jax.Array:
    return jnp.any(self)


@lowers("aten.fill.Scalar", "aten.fill.Tensor")
def fill(self: jax.Array, value: Number) -> jax.Array:
    return jnp.broadcast_to(scalar(value, self), self.shape)


@lowers("aten.copy.default")
def copy(self: jax.Array, src: jax.Array, non_blocking: bool = False) -> jax.Array:
    return jnp.broadcast_to(convert(src, self.dtype), self.shape)
