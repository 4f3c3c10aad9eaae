"""Numbers as integers with a scale, as torch's `quantized_decomposed` operators define them."""

from typing import Any

import jax
import jax.numpy as jnp
import torch

from torch_xdist.dtypes import to_jax
from torch_xdist.ops.table import lowers


def along(values: Any, rank: int, axis: int) -> Any:
    """One value for each place along an axis, for an array of this rank."""
    return values.reshape([-1 if dim == axis % rank else 1 for dim in range(rank)])


def quantized(x: Any, scale: Any, zero: Any, low: int, high: int, dtype: Any) -> jax.Array:
    """`x / scale + zero`, rounded and clamped."""
    # torch multiplies by the inverse too, which may round another way than a quotient.
    return jnp.clip(jnp.round(x * (1.0 / scale)) + zero, low, high).astype(dtype)


def dequantized(x: jax.Array, scale: Any, zero: Any) -> jax.Array:
    """`(x - zero) * scale` in float32."""
    return (x.astype(jnp.float32) - zero) * scale


_DECOMPOSED = "quantized_decomposed."


@lowers(_DECOMPOSED + "quantize_per_tensor.default", _DECOMPOSED + "quantize_per_tensor.tensor")
def quantize_per_tensor(
    input: jax.Array,
    scale: Any,
    zero_point: Any,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
) -> jax.Array:
    return quantized(input, scale, zero_point, quant_min, quant_max, to_jax(dtype))


@lowers(_DECOMPOSED + "dequantize_per_tensor.default", _DECOMPOSED + "dequantize_per_tensor.tensor")
def dequantize_per_tensor(
    input: jax.Array,
    scale: Any,
    zero_point: Any,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
    *,
    out_dtype: torch.dtype | None = None,
) -> jax.Array:
    return dequantized(input, scale, zero_point)


@lowers(_DECOMPOSED + "quantize_per_channel.default")
def quantize_per_channel(
    input: jax.Array,
    scales: jax.Array,
    zero_points: jax.Array,
    axis: int,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
) -> jax.Array:
    scale, zero = (along(values, input.ndim, axis) for values in (scales, zero_points))
    return quantized(input, scale, zero, quant_min, quant_max, to_jax(dtype))


@lowers(_DECOMPOSED + "dequantize_per_channel.default")
def dequantize_per_channel(
    input: jax.Array,
    scales: jax.Array,
    zero_points: jax.Array | None,
    axis: int,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
    *,
    out_dtype: torch.dtype | None = None,
) -> jax.Array:
    zero = 0 if zero_points is None else along(zero_points, input.ndim, axis)
    return dequantized(input, along(scales, input.ndim, axis), zero)


def four_bits(weight: jax.Array) -> jax.Array:
    """Integers from -8 to 7 in int8, as int4."""
    return weight.astype(jnp.int4)
