"""When attention on a GPU is cuDNN's, which keeps nothing of size t x s; `attention.py` asks.

cuDNN's has no gradient of its gradient, as torch's own flash attention has none: torch's switches
(`torch.nn.attention.sdpa_kernel`) choose here as they do for CUDA tensors, by `SDPBackend.MATH`
the plain form.
"""

import functools
from typing import Any

import jax
import torch

from torch_xdist.core.trace.values import Device

try:
    from jax._src.cudnn.fused_attention_stablehlo import check_cudnn_version
except ImportError:
    check_cudnn_version = None  # type: ignore[assignment]

_HALVES = (torch.bfloat16, torch.float16)
# The first with the kernels is Ampere, and up to it heads are no wider.
_OLDEST = (8, 0)
_WIDEST = 128


def fits(
    here: Device,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
) -> bool:
    """Whether cuDNN computes attention of [b, heads, t, d] queries here, forward and backward."""
    # Over several devices XLA cannot divide it as it divides what is written out.
    if not here.choices.has_fused_attention or here.layout is not None:
        return False
    t, d = query.shape[-2:]
    is_plain = query.dim() == 4 and mask is None and query.dtype in _HALVES
    is_square = key.size(-2) == t and value.size(-1) == d
    is_sized = d % 8 == 0 and d <= _WIDEST
    return is_plain and is_square and is_sized and is_wanted() and is_there(here.jax)


def is_wanted() -> bool:
    """Whether torch's switches allow kernels whose gradient has no gradient."""
    flags: Any = torch.backends.cuda
    return bool(flags.flash_sdp_enabled() or flags.cudnn_sdp_enabled())


@functools.cache
def is_there(gpu: jax.Device) -> bool:
    """Whether this GPU has the kernels, and cuDNN is installed for JAX."""
    if check_cudnn_version is None:
        return False
    try:
        check_cudnn_version()
    except RuntimeError:
        return False
    major, _, minor = str(getattr(gpu, "compute_capability", "0.0")).partition(".")
    return (int(major), int(minor or 0)) >= _OLDEST
