"""What torch_xla puts in the place of functions of torch, by its names."""

from math import inf

from torch_xdist.training.gradient_norm import (
    clip_grad_norm_,
)
from torch_xdist.training.gru import (
    GRU as ScanGRU,
)

__all__ = [
    "ScanGRU",
    "clip_grad_norm_",
    "inf",
]
