"""`xb`: JAX functions inside the trace."""

from torch_xdist.torch_xla_compat.jax_calls import call_jax
from torch_xdist.torch_xla_compat.jax_imports import (
    jax_env_context,
    jax_import_guard,
    maybe_get_jax,
    maybe_get_torchax,
    requires_jax,
)

__all__ = [
    "call_jax",
    "jax_env_context",
    "jax_import_guard",
    "maybe_get_jax",
    "maybe_get_torchax",
    "requires_jax",
]
