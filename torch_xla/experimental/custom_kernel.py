"""Attention under the name of the TPU kernels."""

from torch_xdist.names.flash import flash_attention

__all__ = ["flash_attention"]
