"""Quantizing and back, by the names of `torch_xla.experimental.quantized`.

torch's own operators for it (`quantized_decomposed`) run on the device as they are, as what torch
makes of them; these are for scripts that call torch_xla's.
"""

import contextlib

import torch

with contextlib.suppress(ImportError):
    # Defines torch.ops.quantized_decomposed, by which scripts quantize; newer torch may lack it.
    import torch.ao.quantization.fx._decomposed

from torch_xdist.errors import ArgumentError
from torch_xdist.kernels.raw_ops import _xla_dequantize_tensor, _xla_quantize_tensor


def _unpack_tensor_to_list(t: torch.Tensor) -> list[float]:
    """The values of a tensor of any device."""
    return t.tolist()


def _check_scale_zp(
    input: torch.Tensor,
    scale: torch.Tensor,
    zero_point: torch.Tensor,
    axis: int,
    dtype: torch.dtype,
) -> None:
    """Raise ArgumentError unless the scales and zero points are those of `axis`, or one of each."""
    if "int" not in str(dtype):
        raise ArgumentError(f"quantize: dtype is {dtype}; an integer dtype is needed")
    limits = torch.iinfo(dtype)
    size = 1 if axis == -1 else input.shape[axis]
    for name, values in (("scale", scale), ("zero_point", zero_point)):
        if values.dim() != 1 or values.numel() not in (1, size):
            raise ArgumentError(
                f"quantize: {name} has shape {list(values.shape)}; along axis {axis} of a tensor"
                f" {list(input.shape)} it must be [{size}] or [1]"
            )
    if any(not limits.min <= value <= limits.max for value in zero_point.tolist()):
        raise ArgumentError(
            f"quantize: zero_point {zero_point.tolist()} is outside of {dtype}, which holds"
            f" {limits.min} to {limits.max}"
        )
    if any(value <= 0 for value in scale.tolist()):
        raise ArgumentError(f"quantize: scale {scale.tolist()} must be above 0")


def _xla_quantize(
    input: torch.Tensor,
    scale: torch.Tensor,
    zero_point: torch.Tensor,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
    axis: int = -1,
) -> torch.Tensor:
    """`input / scale + zero_point`, rounded and clamped, as integers.

    Args:
        scale, zero_point: [size of `axis`], or [1]; they are read, and constants of the program.
    """
    _check_scale_zp(input, scale, zero_point, axis, dtype)
    scales, zeros = _unpack_tensor_to_list(scale), _unpack_tensor_to_list(zero_point)
    whole = [int(zero) for zero in zeros]
    return _xla_quantize_tensor(input, scales, whole, quant_min, quant_max, str(dtype), axis)


def _xla_dequantize(
    input: torch.Tensor,
    scale: torch.Tensor,
    zero_point: torch.Tensor,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
    axis: int = -1,
) -> torch.Tensor:
    """`(input - zero_point) * scale` in float32; the arguments are those of `_xla_quantize`."""
    _check_scale_zp(input, scale, zero_point, axis, dtype)
    scales, zeros = _unpack_tensor_to_list(scale), _unpack_tensor_to_list(zero_point)
    whole = [int(zero) for zero in zeros]
    return _xla_dequantize_tensor(input, scales, whole, quant_min, quant_max, str(dtype), axis)
