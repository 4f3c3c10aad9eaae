"""Gradients of many small batches, summed by one loop."""

from torch_xdist.builder.parameters import XlaBuildHelper
from torch_xdist.training.gradient_accumulation import (
    GradientAccumulationContext,
    gradient_accumulation,
)

__all__ = ["GradientAccumulationContext", "XlaBuildHelper", "gradient_accumulation"]
