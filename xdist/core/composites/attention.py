"""Operators that torch makes of many others and that we record as one row.

torch decomposes attention and recurrent layers above autograd, so no row of the lowering table
would see them. Kernels entered under the AutogradLazy key catch them; their gradient is one more
row, made by `jax.vjp`, whose gradient is again one, and so on. What a kernel cannot serve (other
tensors than the device's own, dropout, functorch's transforms, forward mode) goes torch's way.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import torch
from torch.autograd import forward_ad

from torch_xdist.core.composites import fused_attention, splash_attention
from torch_xdist.core.devices import device as devices_here
from torch_xdist.core.devices.tensor import XlaTensor
from torch_xdist.core.jax_side.differentiable import differentiable_row
from torch_xdist.ops.attention import attend, attend_by_cudnn
from torch_xdist.ops.operands import widened
from torch_xdist.releases import patches

_libraries: list[torch.library.Library] = []
# Elsewhere torch makes these of other operators, whose results of half precision it rounds each.
_ARRIVE = ("linear", "mish_backward", "native_channel_shuffle", "silu_backward")
_ATTENTION = torch.ops.aten.scaled_dot_product_attention.default


def are_ours(*tensors: torch.Tensor) -> bool:
    """Whether all are floating point tensors of the device, outside forward mode."""
    return forward_ad._current_level < 0 and all(
        type(t) is XlaTensor and t.is_floating_point() for t in tensors
    )


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Scaled dot product attention as one row."""
    if not _fits(query, key, value, attn_mask, dropout_p, is_causal, enable_gqa):
        return _ATTENTION.decompose(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    factor = 1 / math.sqrt(query.size(-1)) if scale is None else scale
    here = devices_here.device_at(devices_here.index_of(query.device))
    if splash_attention.fits(here, query, key, value, attn_mask):
        return splash_attention.attention(query, key, value, is_causal, factor)
    if enable_gqa:
        repeats = query.size(-3) // key.size(-3)
        key = key.repeat_interleave(repeats, -3)
        value = value.repeat_interleave(repeats, -3)
    if fused_attention.fits(here, query, key, value, attn_mask):
        by_cudnn = functools.partial(_attend_by_cudnn, is_causal, factor)
        named = "scaled_dot_product_attention_by_cudnn", by_cudnn, [query, key, value]
        return differentiable_row(*named, (is_causal, factor))[0]
    tensors = [query, key, value] if attn_mask is None else [query, key, value, attn_mask]
    # torch has fused kernels, which round halves within, for [b, heads, t, d] and fixed masks.
    fused = query.dim() == 4 and (attn_mask is None or not attn_mask.requires_grad)

    row = functools.partial(_attend, is_causal, factor, fused)
    key_of_row = (is_causal, factor, fused)
    return differentiable_row("scaled_dot_product_attention", row, tensors, key_of_row)[0]


def _attend_by_cudnn(is_causal: bool, factor: float, *arrays: jax.Array) -> jax.Array:
    return attend_by_cudnn(*arrays, is_causal, factor)


def _attend(is_causal: bool, factor: float, fused: bool, *arrays: jax.Array) -> jax.Array:
    whole = arrays[:3] if fused else widened(arrays[:3])
    mask = arrays[3] if len(arrays) > 3 else None
    return attend(*whole, mask, is_causal, factor).astype(arrays[0].dtype)


def _fits(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    dropout_p: float,
    is_causal: bool,
    enable_gqa: bool,
) -> bool:
    if dropout_p > 0 or not are_ours(query, key, value) or query.dim() < 3:
        return False
    if min(query.numel(), key.numel(), value.numel()) == 0:
        return False
    if mask is not None:
        lead_fits = mask.dim() <= query.dim() and not is_causal
        if not lead_fits or type(mask) is not XlaTensor:
            return False
        if mask.dtype not in (torch.bool, query.dtype):
            return False
    heads, kv_heads = query.size(-3), key.size(-3)
    grouped = enable_gqa and heads % kv_heads == 0 and query.shape[:-3] == key.shape[:-3]
    return (
        (grouped or query.shape[:-2] == key.shape[:-2])
        and key.shape[:-1] == value.shape[:-1]
        and query.size(-1) == key.size(-1)
        and query.dtype == key.dtype == value.dtype
    )


def register() -> None:
    """Let attention and the operators of `_ARRIVE` arrive whole."""
    library = torch.library.Library("aten", "IMPL", "AutogradLazy")
    library.impl("scaled_dot_product_attention", attention)
    below = torch.library.Library("aten", "IMPL", "Lazy")
    for name in _ARRIVE:
        below.impl(name, _unreached)
    _libraries.extend([library, below])
    patches.wrap("torch.autograd.forward_ad.enter_dual_level", _entering)
    patches.wrap("torch.autograd.forward_ad.exit_dual_level", _leaving)


# What takes `_ARRIVE` apart for as long as somebody asks for forward derivatives.
_apart: list[torch.library.Library] = []


def _entering(enter: Callable[[], int]) -> Callable[[], int]:
    """torch knows no forward derivative of these operators, but of those it makes them of."""

    def enter_dual_level() -> int:
        level = enter()
        if not _apart:
            _apart.append(library := torch.library.Library("aten", "IMPL", "AutogradLazy"))
            for name in _ARRIVE:
                library.impl(name, getattr(torch.ops.aten, name).default.decompose)
        return level

    return functools.update_wrapper(enter_dual_level, enter)


def _leaving(leave: Callable[..., None]) -> Callable[..., None]:
    def exit_dual_level(*, level: int | None = None) -> None:
        leave(level=level)
        if forward_ad._current_level < 0 and _apart:
            _apart.pop()._destroy()

    return functools.update_wrapper(exit_dual_level, leave)


def _unreached(*args: Any) -> torch.Tensor:
    """torch calls these operators whole only where the device has a kernel of its own.

    Calls of them arrive in dispatch.py before any kernel.
    """
    raise AssertionError(f"one of {', '.join(_ARRIVE)} reached the kernel of the device underneath")
