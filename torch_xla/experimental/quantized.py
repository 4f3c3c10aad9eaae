"""Quantizing tensors and back."""

from torch_xdist.kernels.quantized import (
    _check_scale_zp,
    _unpack_tensor_to_list,
    _xla_dequantize,
    _xla_quantize,
)

__all__ = ["_check_scale_zp", "_unpack_tensor_to_list", "_xla_dequantize", "_xla_quantize"]
