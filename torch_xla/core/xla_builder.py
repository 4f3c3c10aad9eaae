"""`xb`: JAX functions inside the trace."""

from torch_xdist.names.jax_calls import call_jax

__all__ = ["call_jax"]
