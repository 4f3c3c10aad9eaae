"""A loop along a dim, compiled once."""

from torch_xdist.jax_calls import scan

__all__ = ["scan"]
