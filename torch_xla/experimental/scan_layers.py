"""Layers of one form, compiled as if there was one."""

from torch_xdist.training.scan import scan
from torch_xdist.training.scan_layers import _ONE_LAYER_CACHE, scan_layers

__all__ = ["_ONE_LAYER_CACHE", "scan", "scan_layers"]
