"""Operators refused on purpose, and why: the reason becomes the error's text."""

_SPARSE = "of the sparse layouts xla devices have COO alone; use .to_sparse(), or .cpu() first"
_QUANTIZED = "quantized tensors do not exist on xla devices; use int8 tensors and scales"

REFUSED: dict[str, str] = {
    "aten._sparse_compressed_tensor_unsafe.default": _SPARSE,
    "aten._to_sparse_csr.default": _SPARSE,
    "aten._to_sparse_csc.default": _SPARSE,
    "aten._to_sparse_bsr.default": _SPARSE,
    "aten._to_sparse_bsc.default": _SPARSE,
    "aten.to_mkldnn.default": "mkldnn tensors live on the CPU; call .cpu() first",
    "aten.quantize_per_tensor.default": _QUANTIZED,
    "aten.quantize_per_channel.default": _QUANTIZED,
    "aten.quantize_per_tensor_dynamic.default": _QUANTIZED,
}
