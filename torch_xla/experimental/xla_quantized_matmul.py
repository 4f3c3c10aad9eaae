"""Products with quantized weights."""

from torch_xdist.kernels.quantized_matmul import (
    XlaQuantizedLinear,
    _check_blockwise_quant_weight_dtype_shapes,
    _check_per_channel_quant_weight_dtype_shapes,
    _quantize_tensor,
    quantized_matmul,
    quantized_matmul_xla,
)

__all__ = [
    "XlaQuantizedLinear",
    "_check_blockwise_quant_weight_dtype_shapes",
    "_check_per_channel_quant_weight_dtype_shapes",
    "_quantize_tensor",
    "quantized_matmul",
    "quantized_matmul_xla",
]
