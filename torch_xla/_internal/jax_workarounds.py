"""Precautions around `import jax`."""

from torch_xdist.torch_xla_compat.jax_imports import (
    jax_env_context,
    jax_import_guard,
    maybe_get_jax,
    maybe_get_torchax,
    requires_jax,
)

__all__ = [
    "jax_env_context",
    "jax_import_guard",
    "maybe_get_jax",
    "maybe_get_torchax",
    "requires_jax",
]
