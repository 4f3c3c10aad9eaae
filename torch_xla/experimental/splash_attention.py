"""Splash attention."""

from torch_xdist.kernels.splash_attention import (
    SplashAttention,
    sa_custom_backward,
    sa_custom_backward_fake,
    sa_custom_forward,
    sa_custom_forward_fake,
    splash_attention,
    tpu_splash_attention_jax_call_wrapper,
)
from torch_xdist.kernels.splash_forms import (
    SplashAttentionConfig,
    _jax_grad_f,
    splash_attention_jax_wrapper,
)
from torch_xdist.spmd.mesh import Mesh
from torch_xdist.torch_xla_compat.jax_calls import call_jax
from torch_xdist.torch_xla_compat.jax_imports import requires_jax

__all__ = [
    "Mesh",
    "SplashAttention",
    "SplashAttentionConfig",
    "_jax_grad_f",
    "call_jax",
    "requires_jax",
    "sa_custom_backward",
    "sa_custom_backward_fake",
    "sa_custom_forward",
    "sa_custom_forward_fake",
    "splash_attention",
    "splash_attention_jax_wrapper",
    "tpu_splash_attention_jax_call_wrapper",
]
