"""When attention on a TPU is JAX's splash kernel, which keeps nothing of size t x s in HBM.

`attention.py` asks. The kernel has no gradient of its gradient, as torch's own flash attention has
none: `sdpa_kernel([SDPBackend.MATH])` chooses the plain form here too.
"""

import functools

import jax
import torch

from torch_xdist.core.composites.fused_attention import is_wanted
from torch_xdist.core.jax_side.differentiable import differentiable_row
from torch_xdist.core.trace.plans import Plan
from torch_xdist.core.trace.values import Device
from torch_xdist.ops import splash

# From so many scores of a head on the kernel moves less through HBM than what is written out; the
# table is in docs/tpu.md.
LEAST_SCORES = 512 * 512
_DTYPES = (torch.bfloat16, torch.float32)
# XLA's product of shorter or odd heads is no worse, and the kernel's is not tried on them.
_HEADS = (64, 128, 256)


def fits(
    here: Device,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
) -> bool:
    """Whether it computes attention of [b, heads, t, d] queries here, forward and backward."""
    # Over several devices XLA cannot divide it as it divides what is written out.
    if not here.choices.has_pallas or here.layout is not None:
        return False
    if query.dim() != 4 or mask is not None or query.dtype not in _DTYPES:
        return False
    t, d = query.shape[-2:]
    is_sized = d in _HEADS and value.size(-1) == d and t * key.size(-2) >= LEAST_SCORES
    return is_sized and is_wanted() and _is_exact_enough(query.dtype)


def _is_exact_enough(dtype: torch.dtype) -> bool:
    """Whether products need be no more exact than the kernel's, which are of one pass."""
    asked = jax.config.jax_default_matmul_precision  # type: ignore[attr-defined]
    return dtype is torch.bfloat16 or asked in (None, "default")


NAME = "scaled_dot_product_attention_by_splash"


def attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, is_causal: bool, scale: float
) -> torch.Tensor:
    """It as a row, whose gradient is another: that reads what the first one kept of its sums."""
    row = functools.partial(splash.attend, is_causal, scale)
    back = functools.partial(splash.gradients, is_causal, scale)
    operands = [query, key, value]
    return differentiable_row(NAME, row, operands, (is_causal, scale), back)[0]


def flops(plan: Plan) -> float:
    """What the kernels of a row compute; 0 for other rows."""
    if not plan.name.startswith(NAME):
        return 0.0
    queries, keys, *_ = (kind.shape for kind in plan.operand_types)
    is_backward, key = plan.name != NAME, plan.args[-1]
    is_causal = key[0][0] if is_backward else key[0]
    return splash.flops(queries, keys, is_causal, is_backward=is_backward)
