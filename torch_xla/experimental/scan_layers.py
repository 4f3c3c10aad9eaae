"""Layers of one form, compiled as if there was one."""

from torch_xdist.torch_xla_compat.jax_calls import scan
from torch_xdist.training.scan_layers import scan_layers

__all__ = ["scan", "scan_layers"]
