"""Attention of jagged nested tensors on the device: of padded ones, with a mask of what is there.

torch has kernels of its own for cuda, and for other devices makes nested tensors of C++, which know
no further devices.
"""

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from torch_xdist.releases import late_imports, patches

_MODULE = "torch.nested._internal.sdpa"
_JAGGED = 2  # the dim of [batch, heads, length, size] that differs from sequence to sequence


def _padded(usual: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @functools.wraps(usual)
    def jagged_scaled_dot_product_attention(
        query: Any,
        key: Any,
        value: Any,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> torch.Tensor:
        tensors = (query, key, value)
        if query.device.type != "xla" or attn_mask is not None or not all(map(_is_plain, tensors)):
            given = (attn_mask, dropout_p, is_causal, scale, enable_gqa)
            return usual(*tensors, *given)
        queries, keys, values = [_dense(x) for x in tensors]
        mask = _mask(key.offsets(), queries.shape[_JAGGED], keys.shape[_JAGGED], is_causal)
        found = torch.nn.functional.scaled_dot_product_attention(
            queries, keys, values, mask, dropout_p, scale=scale, enable_gqa=enable_gqa
        )
        return _like(query, found)

    return jagged_scaled_dot_product_attention


def _is_plain(tensor: Any) -> bool:
    """[batch, heads, length, size] whose lengths alone differ, without holes between them."""
    is_jagged = tensor.is_nested and tensor.layout is torch.jagged and tensor.dim() == 4
    return is_jagged and tensor._ragged_idx == _JAGGED and tensor.lengths() is None


def _rows(tensor: Any) -> Any:
    """[batch, length, heads, size]."""
    return tensor.transpose(1, _JAGGED)


def _dense(tensor: Any) -> torch.Tensor:
    """[batch, heads, longest, size]: the sequences, each with zeros after it.

    The gradient of torch's own way there asks how many rows there are.
    """
    rows = _rows(tensor)
    values, offsets = rows.values(), rows.offsets()
    places = offsets[:-1, None] + torch.arange(rows._get_max_seqlen(), device=offsets.device)
    is_there = (places < offsets[1:, None])[:, :, None, None]
    found = values[places.clamp(max=len(values) - 1)]
    return torch.where(is_there, found, 0).transpose(1, _JAGGED)


def _mask(offsets: torch.Tensor, queries: int, keys: int, is_causal: bool) -> torch.Tensor:
    """[batch, 1, 1 or queries, keys]: whether a query may look at a key."""
    mask = torch.arange(keys, device=offsets.device) < offsets.diff()[:, None]
    mask = mask[:, None, None]
    if not is_causal:
        return mask
    return mask & torch.ones(queries, keys, dtype=torch.bool, device=offsets.device).tril()


def _like(query: Any, dense: torch.Tensor) -> torch.Tensor:
    """[batch, heads, length, size] as a nested tensor of the query's lengths."""
    offsets, total = query.offsets(), _rows(query).values().shape[0]
    places = torch.arange(total, device=offsets.device)
    # torch's own way back from padded rows has no gradient.
    sequence = torch.searchsorted(offsets[1:], places, right=True)
    values = dense.transpose(1, _JAGGED)[sequence, places - offsets[sequence]]
    # The public function refuses where a graph is captured.
    rows = torch.nested._internal.nested_tensor.nested_view_from_values_offsets(
        values,
        offsets,
        min_seqlen=query._maybe_min_seqlen,
        max_seqlen=query._maybe_max_seqlen,
    )
    return rows.transpose(1, _JAGGED)


def _change(module: ModuleType) -> None:
    patches.wrap(f"{_MODULE}.jagged_scaled_dot_product_attention", _padded)


def register() -> None:
    """Change it where torch has it, once that is imported."""
    late_imports.when_imported(_MODULE, _change)
