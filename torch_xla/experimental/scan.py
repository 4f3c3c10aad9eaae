"""A loop along a dim, compiled once."""

from torch_xdist.names.jax_calls import scan

__all__ = ["scan"]
