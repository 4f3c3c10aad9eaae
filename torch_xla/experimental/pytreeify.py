"""Autograd functions of nests of tensors."""

from torch_xdist.training.pytreeify import pytreeify

__all__ = ["pytreeify"]
