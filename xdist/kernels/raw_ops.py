"""XLA operators that torch lacks, by the private names torch_xla has for them."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax import lax

from torch_xdist import dtypes
from torch_xdist.core.devices.tensor import XlaTensor
from torch_xdist.core.record.jax_ops import record_jax
from torch_xdist.errors import ArgumentError, DeviceError
from torch_xdist.ops.quantized import along, dequantized, four_bits, quantized

_PLACES = ("first", "second")


def _xla_dot_general(
    lhs: torch.Tensor,
    rhs: torch.Tensor,
    dimension_numbers: tuple[Any, ...],
    precision_config: str | None = None,
    preferred_element_type: torch.dtype | None = None,
) -> torch.Tensor:
    """XLA's DotGeneral.

    Args:
        dimension_numbers: ((of lhs, of rhs), (of lhs, of rhs)): the contracted dims and the batch
            dims, as lists; an empty tuple in the place of a pair for none.
        preferred_element_type: the dtype of the sums and of the result.

    Source: https://openxla.org/xla/operation_semantics#dotgeneral
    """
    if precision_config is not None:
        raise ArgumentError(
            f"_xla_dot_general: precision_config {precision_config!r} is not supported; use"
            " torch_xla.backends.set_mat_mul_precision"
        )
    for place, tensor in zip(_PLACES, (lhs, rhs)):
        if tensor.__class__ is not XlaTensor:
            kind = tensor.type().removeprefix("torch.").removesuffix("Tensor")
            raise DeviceError(
                f"Expected input tensor ({place} argument) to be an actual XLA tensor. Got:"
                f" CPU{kind}Type. Consider moving it ({place} argument) to XLA."
            )
    ranks = lhs.dim(), rhs.dim()
    dims: Any = tuple(
        tuple(tuple(d % rank for d in of_one) for rank, of_one in zip(ranks, pair or ((), ())))
        for pair in dimension_numbers
    )
    wanted = None if preferred_element_type is None else dtypes.to_jax(preferred_element_type)

    def product(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
        return lax.dot_general(lhs, rhs, dims, preferred_element_type=wanted)

    operands: list[Any] = [lhs, rhs]
    return record_jax("xla::dot_general", product, operands, (dims, wanted))[0]


def _xla_cast_int4(weight: torch.Tensor, int4_weight_values: Sequence[int]) -> torch.Tensor:
    """Integers as 4 bits have them, in int8; the second argument is accepted: it holds the same."""

    def cast(weight: jax.Array) -> jax.Array:
        return four_bits(weight).astype(jnp.int8)

    return record_jax("xla::cast_int4", cast, [weight])[0]  # type: ignore[list-item]


def _column(values: Sequence[float], rank: int, axis: int, dtype: Any) -> jax.Array:
    """Numbers to be broadcast along `axis`; one number where that is -1."""
    column = jnp.asarray(values, dtype)
    return column[0] if axis == -1 else along(column, rank, axis)


def _xla_quantize_tensor(
    input: torch.Tensor,
    scale_list: Sequence[float],
    zero_point_list: Sequence[int],
    quant_min: int,
    quant_max: int,
    dtype: str,
    axis: int,
) -> torch.Tensor:
    """`input / scale + zero_point`, rounded and clamped; along `axis`, or -1 for all at once."""
    key = (*scale_list,), (*zero_point_list,), quant_min, quant_max, dtype, axis
    integer = dtypes.to_jax(getattr(torch, dtype.removeprefix("torch.")))

    def quantize(x: jax.Array) -> jax.Array:
        scale = _column(scale_list, x.ndim, axis, x.dtype)
        zero = _column(zero_point_list, x.ndim, axis, x.dtype)
        return quantized(x, scale, zero, quant_min, quant_max, integer)

    return record_jax("xla::quantize_tensor", quantize, [input], key)[0]  # type: ignore[list-item]


def _xla_dequantize_tensor(
    input: torch.Tensor,
    scale_list: Sequence[float],
    zero_point_list: Sequence[int],
    quant_min: int,
    quant_max: int,
    dtype: str,
    axis: int,
) -> torch.Tensor:
    """`(input - zero_point) * scale` in float32; along `axis`, or -1 for all at once."""
    key = (*scale_list,), (*zero_point_list,), axis

    def dequantize(x: jax.Array) -> jax.Array:
        scale, zero = (_column(v, x.ndim, axis, jnp.float32) for v in (scale_list, zero_point_list))
        return dequantized(x, scale, zero)

    row = record_jax("xla::dequantize_tensor", dequantize, [input], key)  # type: ignore[list-item]
    return row[0]
