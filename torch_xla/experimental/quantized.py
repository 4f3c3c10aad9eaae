"""Quantizing tensors of the device."""

from torch_xdist.export.quantized import (
    check_scale_zp as _check_scale_zp,
)
from torch_xdist.export.quantized import (
    dequantize as _xla_dequantize,
)
from torch_xdist.export.quantized import (
    quantize as _xla_quantize,
)
from torch_xdist.export.quantized import (
    unpack_tensor_to_list as _unpack_tensor_to_list,
)

__all__ = [
    "_check_scale_zp",
    "_unpack_tensor_to_list",
    "_xla_dequantize",
    "_xla_quantize",
]
