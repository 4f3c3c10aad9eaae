"""What lowerings do with operands before they compute: numbers, casts, and float32 for halves.

No rows here. Every operand is a JAX array; a "number" is what torch calls a Scalar: a Python
number, or a 0-d array where the program takes it as an input.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from torch_xdist.dtypes import to_jax

Number = bool | int | float | complex | jax.Array
_HALF = (jnp.float16, jnp.bfloat16)


def scalar(value: Number, like: jax.Array) -> jax.Array:
    """The number `value` as a 0-d array of the dtype of `like`; integers wrap around."""
    if isinstance(value, jax.Array):
        return convert(value, like.dtype)
    with np.errstate(all="ignore"):
        constant = np.asarray(value)
        if constant.dtype.kind == "c" and not is_complex(like):
            constant = constant.real
        return jnp.asarray(constant.astype(like.dtype))


def is_float(x: jax.Array) -> bool:
    """Whether `x` holds real floating point numbers."""
    return bool(jnp.issubdtype(x.dtype, jnp.floating))


def is_complex(x: jax.Array) -> bool:
    """Whether `x` holds complex numbers."""
    return bool(jnp.issubdtype(x.dtype, jnp.complexfloating))


def is_integral(x: jax.Array) -> bool:
    """Whether `x` holds integers or booleans."""
    return not is_float(x) and not is_complex(x)


def convert(x: jax.Array, dtype: torch.dtype | np.dtype | type) -> jax.Array:
    """`x` in another dtype as C casts it: narrow integers wrap around, bool is "not zero"."""
    target = to_jax(dtype) if isinstance(dtype, torch.dtype) else np.dtype(dtype)
    if target == x.dtype:
        return x
    if target == jnp.bool_:
        return x != 0
    if is_complex(x) and not jnp.issubdtype(target, jnp.complexfloating):
        x = x.real
    narrow = jnp.issubdtype(target, jnp.integer) and target.itemsize < 4
    if narrow and is_float(x):
        # XLA saturates; torch on the CPU goes through int32 and keeps the low bits.
        x = x.astype(jnp.int32)
    return promoted(x, target)


def promoted(x: jax.Array, dtype: Any) -> jax.Array:
    """`x` in another dtype, as XLA casts it, but for masks that become numbers.

    A product with such numbers is nan where they are 0 and the other factor is not finite, as in
    eager torch: of a cast XLA would know that it is a mask, and select by it.
    """
    if x.dtype == jnp.bool_ and jnp.issubdtype(dtype, jnp.inexact):
        return jnp.where(x, jnp.ones((), dtype), jnp.zeros((), dtype))
    return x.astype(dtype)


def wide(dtype: Any) -> Any:
    """In which dtype sums of `dtype` are accumulated: float32 for half precision."""
    return np.dtype(np.float32) if dtype in _HALF else dtype


def widened(x: Any) -> Any:
    """`x` in float32 if it is an array of half precision; anything else as it is."""
    if isinstance(x, jax.Array) and x.dtype in _HALF:
        return x.astype(jnp.float32)
    if isinstance(x, (list, tuple)):
        return [widened(entry) for entry in x]
    return x


def opmath(lowering: Callable[..., Any]) -> Callable[..., Any]:
    """Let the lowering see halves as float32. For rows torch does not promote, e.g. reductions.

    The caller of a lowering rounds its results to torch's result dtype.
    """

    @functools.wraps(lowering)
    def wide(*args: Any, **kwargs: Any) -> Any:
        return lowering(
            *[widened(arg) for arg in args], **{name: widened(arg) for name, arg in kwargs.items()}
        )

    return wide


def with_number(lowering: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """The Scalar form of a binary lowering: `other` is a number."""

    @functools.wraps(lowering)
    def second(self: jax.Array, other: Number, *args: Any, **kwargs: Any) -> jax.Array:
        return lowering(self, scalar(other, self), *args, **kwargs)

    return second


def number_first(lowering: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """The form of a binary lowering in which the first operand is a number."""

    @functools.wraps(lowering)
    def first(self: Number, other: jax.Array, *args: Any, **kwargs: Any) -> jax.Array:
        return lowering(scalar(self, other), other, *args, **kwargs)

    return first
