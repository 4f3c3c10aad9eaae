"""Splash attention by torch_xla's names: causal or not, by segments, in a window, sharded."""

from typing import Any

import jax
import torch

from torch_xdist.core.torch_side.xla_namespace import define
from torch_xdist.kernels.rows import is_on_device, kernel_row
from torch_xdist.kernels.splash_forms import (
    SplashAttentionConfig,
    _jax_grad_f,
    splash_attention_jax_wrapper,
)
from torch_xdist.kernels.torch_ops import gradients

_Maybe = torch.Tensor | None
_Three = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def _gradients(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    ids: jax.Array | None,
    grad: jax.Array,
    **static: Any,
) -> tuple[jax.Array, ...]:
    return _jax_grad_f(query, key, value, ids, **static, grad_output=grad)


def tpu_splash_attention_jax_call_wrapper(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    config: SplashAttentionConfig,
    decoder_segment_ids: _Maybe,
    causal: bool,
    attn_logits_soft_cap: float | None = None,
    is_forward: bool = True,
    grad_output: _Maybe = None,
) -> tuple[torch.Tensor, _Maybe, _Maybe]:
    """(the output, None, None), or the gradients of query, key and value; as a row."""
    static = {"causal": causal, "config": config, "attn_logits_soft_cap": attn_logits_soft_cap}
    operands = query, key, value, decoder_segment_ids
    if is_forward:
        name = "xla::splash_attention"
        return kernel_row(name, splash_attention_jax_wrapper, operands, **static)[0], None, None
    name = "xla::splash_attention_backward"
    found = kernel_row(name, _gradients, [*operands, grad_output], **static)
    return found[0], found[1], found[2]


def _in_torch(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    config: SplashAttentionConfig,
    ids: _Maybe,
    causal: bool,
    cap: float | None,
) -> torch.Tensor:
    """The same by torch's own operators."""
    repeats = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(repeats, dim=1) for x in (k, v))
    scores = q @ k.transpose(-1, -2)
    if cap is not None:
        scores = torch.tanh(scores / cap) * cap
    places = torch.arange(max(q.shape[2], k.shape[2]), device=q.device)
    distance = places[: q.shape[2], None] - places[: k.shape[2]]
    seen = distance >= 0 if causal else torch.ones_like(distance, dtype=torch.bool)
    window = config.window()
    if window is not None:
        seen = seen & (distance.abs() <= window)
    if ids is not None:
        seen = seen & (ids[:, None, :, None] == ids[:, None, None, :])
    return torch.softmax(scores.masked_fill(~seen, torch.finfo(scores.dtype).min), dim=-1) @ v


def sa_custom_forward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    config: str,
    decoder_segment_ids: _Maybe,
    causal: bool | None,
    attn_logits_soft_cap: float | None,
) -> _Three:
    """(output, nothing, nothing)."""
    parsed, is_causal = SplashAttentionConfig.from_json(config), bool(causal)
    cap = attn_logits_soft_cap
    if is_on_device(q):
        operands = q, k, v, parsed, decoder_segment_ids, is_causal, cap
        out = tpu_splash_attention_jax_call_wrapper(*operands)[0]
    else:
        out = _in_torch(q, k, v, parsed, decoder_segment_ids, is_causal, cap)
    return out, q.new_empty(0), q.new_empty(0)


def sa_custom_forward_fake(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    config: str,
    decoder_segment_ids: _Maybe,
    causal: bool | None,
    attn_logits_soft_cap: float | None,
) -> _Three:
    """Tensors like the results of `sa_custom_forward`."""
    return torch.empty_like(q), q.new_empty(0), q.new_empty(0)


def sa_custom_backward(
    grad_output: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    config: str,
    decoder_segment_ids: _Maybe,
    causal: bool | None,
    attn_logits_soft_cap: float | None,
) -> _Three:
    """The gradients of q, k and v."""
    parsed, is_causal = SplashAttentionConfig.from_json(config), bool(causal)
    static = parsed, decoder_segment_ids, is_causal, attn_logits_soft_cap
    if is_on_device(q):
        call = tpu_splash_attention_jax_call_wrapper
        grads: Any = call(q, k, v, *static, is_forward=False, grad_output=grad_output)
        return grads  # type: ignore[no-any-return]
    with torch.enable_grad():
        q, k, v = (x.detach().requires_grad_() for x in (q, k, v))
        out = _in_torch(q, k, v, *static)
    grad_q, grad_k, grad_v = torch.autograd.grad(out, (q, k, v), grad_output)
    return grad_q, grad_k, grad_v


def sa_custom_backward_fake(
    grad_output: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    config: str,
    decoder_segment_ids: _Maybe,
    causal: bool | None,
    attn_logits_soft_cap: float | None,
) -> _Three:
    """Tensors like the results of `sa_custom_backward`."""
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


_OPERANDS = (
    "Tensor q, Tensor k, Tensor v, str config, Tensor? decoder_segment_ids, bool? causal,"
    " float? attn_logits_soft_cap"
)
define(
    f"sa_custom_forward({_OPERANDS}) -> (Tensor, Tensor, Tensor)",
    sa_custom_forward,
    meta=sa_custom_forward_fake,
    device=sa_custom_forward,
)
define(
    f"sa_custom_backward(Tensor grad_output, {_OPERANDS}) -> (Tensor, Tensor, Tensor)",
    sa_custom_backward,
    meta=sa_custom_backward_fake,
    device=sa_custom_backward,
)
_FORWARD = torch.ops.xla.sa_custom_forward.default
_BACKWARD = torch.ops.xla.sa_custom_backward.default


class SplashAttention(torch.autograd.Function):
    """`splash_attention` for autograd."""

    @staticmethod
    def forward(
        ctx: Any,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        config: str,
        decoder_segment_ids: _Maybe,
        causal: bool,
        attn_logits_soft_cap: float | None,
    ) -> torch.Tensor:
        ctx.save_for_backward(q, k, v, decoder_segment_ids)
        ctx.settings = config, causal, attn_logits_soft_cap
        return _FORWARD(q, k, v, config, decoder_segment_ids, causal, attn_logits_soft_cap)[0]

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[_Maybe, ...]:
        q, k, v, ids = ctx.saved_tensors
        config, causal, cap = ctx.settings
        if torch.is_grad_enabled():
            static = SplashAttentionConfig.from_json(config), ids, causal, cap
            attend = lambda q, k, v: _in_torch(q, k, v, *static)  # noqa: E731
            again = gradients(attend, (q, k, v), ctx.needs_input_grad, grad_output)
            return *again, None, None, None, None
        grads = _BACKWARD(grad_output.contiguous(), q, k, v, config, ids, causal, cap)
        return *grads, None, None, None, None


def splash_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    config: str,
    decoder_segment_ids: _Maybe = None,
    causal: bool = True,
    attn_logits_soft_cap: float | None = None,
) -> torch.Tensor:
    """Attention with a gradient, whose kernel on a TPU leaves out blocks that nobody sees.

    Args:
        q: [b, heads, t, d], already scaled.
        k, v: [b, kv_heads, t, d].
        config: the JSON of a `SplashAttentionConfig`.
        decoder_segment_ids: [b, t]; positions see their own segment only.
        causal: a position sees itself and earlier ones.
        attn_logits_soft_cap: scores `s` become `cap * tanh(s / cap)`.

    Returns [b, heads, t, d].
    """
    return SplashAttention.apply(  # type: ignore[no-any-return, no-untyped-call]
        q, k, v, config, decoder_segment_ids, causal, attn_logits_soft_cap
    )
