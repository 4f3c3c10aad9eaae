"""Attention by the name of torch_xla's TPU kernels; here it is one operator of the trace."""

from typing import Any

import torch
import torch.nn.functional as F


def flash_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    causal: bool = False,
    q_segment_ids: torch.Tensor | None = None,
    kv_segment_ids: torch.Tensor | None = None,
    sm_scale: float = 1.0,
    *,
    ab: torch.Tensor | None = None,
    partition_spec: Any = None,
    mesh: Any = None,
) -> torch.Tensor:
    """softmax(q k^T * sm_scale + ab) v, with gradients.

    Args:
        q: [b, h, t, d]; k and v: [b, h, s, d].
        causal: a position sees itself and earlier ones.
        q_segment_ids, kv_segment_ids: [b, t] and [b, s]; positions see their own segment only.
        sm_scale: multiplies the scores.
        ab: [b, h, t, s], added to the scores.
        partition_spec, mesh: accepted for torch_xla's sake; each rank holds its whole operands.

    Returns [b, h, t, d].
    """
    if q_segment_ids is None and ab is None:
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=sm_scale)
    mask = torch.zeros(q.size(-2), k.size(-2), device=q.device, dtype=q.dtype)
    if causal:
        hidden = torch.ones_like(mask, dtype=torch.bool).triu(1)
        mask = mask.masked_fill(hidden, float("-inf"))
    if q_segment_ids is not None:
        theirs = q_segment_ids if kv_segment_ids is None else kv_segment_ids
        other = q_segment_ids[:, None, :, None] != theirs[:, None, None, :]
        mask = mask + torch.zeros_like(other, dtype=q.dtype).masked_fill(other, float("-inf"))
    if ab is not None:
        mask = mask + ab
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=sm_scale)
