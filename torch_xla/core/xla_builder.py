"""`xb`: JAX functions inside the trace."""

from torch_xdist.torch_xla_compat.jax_calls import call_jax

__all__ = ["call_jax"]
