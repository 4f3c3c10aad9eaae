"""Tensors of two runs side by side."""

from torch_xdist.debug.model_compare import (
    compare,
    compare_tensors,
    configure,
    save,
    tensor_file_compare,
)

__all__ = [
    "configure",
    "save",
    "compare",
    "compare_tensors",
    "tensor_file_compare",
]
