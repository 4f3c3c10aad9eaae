"""Operators refused on purpose, and why: the reason becomes the error's text."""

_QUANTIZED = "quantized tensors do not exist on xla devices; use int8 tensors and scales"

REFUSED: dict[str, str] = {
    "aten.to_mkldnn.default": "mkldnn tensors live on the CPU; call .cpu() first",
    "aten._nested_tensor_from_tensor_list.default": (
        "nested tensors of strided layout belong to torch's C++, which has none of xla devices; "
        "pass layout=torch.jagged"
    ),
    "aten.quantize_per_tensor.default": _QUANTIZED,
    "aten.quantize_per_channel.default": _QUANTIZED,
    "aten.quantize_per_tensor_dynamic.default": _QUANTIZED,
}
