"""A loop along a dim, compiled once."""

from torch_xdist.torch_xla_compat.jax_calls import scan

__all__ = ["scan"]
