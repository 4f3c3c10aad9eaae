"""Operators refused on purpose, and why: the reason becomes the error's text."""

_QUANTIZED = "quantized tensors do not exist on xla devices; use int8 tensors and scales"

REFUSED: dict[str, str] = {
    "aten.to_mkldnn.default": "mkldnn tensors live on the CPU; call .cpu() first",
    "aten.quantize_per_tensor.default": _QUANTIZED,
    "aten.quantize_per_channel.default": _QUANTIZED,
    "aten.quantize_per_tensor_dynamic.default": _QUANTIZED,
}
