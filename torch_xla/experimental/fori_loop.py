"""Loops of the program itself."""

from torch_xdist.torch_xla_compat.jax_calls import fori_loop, while_loop

__all__ = ["fori_loop", "while_loop"]
