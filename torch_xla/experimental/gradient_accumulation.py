"""Gradients of many small batches, summed by one loop."""

from torch_xdist.training.gradient_accumulation import gradient_accumulation

__all__ = ["gradient_accumulation"]
