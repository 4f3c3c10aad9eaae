"""Attention under the name of the TPU kernels."""

from torch_xdist.torch_xla_compat.flash_attention import flash_attention

__all__ = ["flash_attention"]
