"""Numbers as integers with a scale, and products with weights of 8 or 4 bits.

Quantizing is as torch's `quantized_decomposed` operators define it, products as
`torch.ops.xla.quantized_matmul` does. The weights stay integers in the program, so hardware that
multiplies them as they are reads one byte, or half of one, for each.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax import lax

from torch_xdist.dtypes import to_jax
from torch_xdist.ops.table import lowers

# Dims as `lax.dot_general` takes them: (of x, of w), contracted and batch.
_Dims = tuple[tuple[Sequence[int], Sequence[int]], tuple[Sequence[int], Sequence[int]]]


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


def rounded_to_int8(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(x as int8, its scale): each row by its own largest value."""
    scale = jnp.abs(x).max(axis=-1, keepdims=True) / 127
    return jnp.round(x / scale).astype(jnp.int8), scale.astype(x.dtype)


def _product(x: jax.Array, w: jax.Array, dims: _Dims) -> jax.Array:
    exact = jnp.issubdtype(x.dtype, jnp.integer)
    return lax.dot_general(x, w, dims, preferred_element_type=jnp.int32 if exact else x.dtype)


@lowers("xla.quantized_matmul.default")
def quantized_matmul(
    x: jax.Array,
    w: jax.Array,
    scale: jax.Array,
    zero_point: jax.Array | None = None,
    block_size: int = -1,
    int4_weight: bool = False,
    quantize_activation: bool = False,
) -> jax.Array:
    """x [..., i] times a weight for o outputs: [..., o].

    Args:
        w: [o, i], or in blocks [i / block_size, block_size, o].
        scale: [o], or of each block [i / block_size, o]; multiplies the integers of `w`.
        zero_point: like `scale`; `scale * w - zero_point` is the weight.
    """
    if int4_weight:
        w = four_bits(w)
    if block_size != -1:
        return _by_blocks(x, w, scale, zero_point, block_size)
    x_scale = None
    if quantize_activation:
        x, x_scale = rounded_to_int8(x)
    last = (x.ndim - 1,)
    out = _product(x, w, ((last, (1,)), ((), ()))) * scale
    if zero_point is not None:
        out = out - x.sum(axis=-1, keepdims=True, dtype=out.dtype) * zero_point
    return out if x_scale is None else out * x_scale


def _by_blocks(
    x: jax.Array, w: jax.Array, scale: jax.Array, zero_point: jax.Array | None, block_size: int
) -> jax.Array:
    blocks = x.reshape(*x.shape[:-1], -1, block_size)
    block, within = blocks.ndim - 2, blocks.ndim - 1
    # [s, ..., o]: the block comes first.
    parts = _product(blocks, w, (((within,), (1,)), ((block,), (0,))))
    out = jnp.einsum("s...o,so->...o", parts, scale)
    if zero_point is not None:
        out = out - blocks.sum(axis=-1) @ zero_point
    return out
