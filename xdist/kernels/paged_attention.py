"""Attention over keys and values in pages, by torch_xla's names."""

import torch

from torch_xdist.core.torch_side.xla_namespace import define
from torch_xdist.errors import ArgumentError
from torch_xdist.kernels.paged_forms import attend_to_pages, pallas_paged, plain_paged
from torch_xdist.kernels.rows import form_here, is_on_device, kernel_row
from torch_xdist.kernels.torch_ops import non_xla_attetion

_MODES = ("kv_head", "batch", None)


def paged_attention(
    q: torch.Tensor,
    k_pages: torch.Tensor,
    v_pages: torch.Tensor,
    lengths: torch.Tensor,
    page_indices: torch.Tensor,
    pages_per_compute_block: int,
    megacore_mode: str | None = None,
    attn_logits_soft_cap: float | None = None,
) -> torch.Tensor:
    """Attention of one query per sequence, its last, to the sequence's pages.

    Args:
        q: [b, heads, d], already scaled.
        k_pages, v_pages: [kv_heads, pages, page size, d].
        lengths: int32 [b], of the keys.
        page_indices: int32 [b, pages of a sequence].
        pages_per_compute_block, megacore_mode: for the kernel of a TPU.
        attn_logits_soft_cap: scores `s` become `cap * tanh(s / cap)`.

    Returns [b, heads, d]. It has no gradient.
    """
    if megacore_mode not in _MODES:
        raise ArgumentError(
            f"paged_attention: megacore_mode {megacore_mode!r}; megacore_mode must be one of"
            f" {list(_MODES)}"
        )
    tensors = q, k_pages, v_pages, lengths, page_indices
    if not is_on_device(q):
        queries = q[:, None], k_pages, v_pages, lengths, page_indices, torch.ones_like(lengths)
        return _multi_queries_paged_attention_nonkernel(*queries, attn_logits_soft_cap)[:, 0]
    return kernel_row(
        "xla::paged_attention",
        form_here(pallas_paged, plain_paged),
        tensors,
        pages_per_compute_block=pages_per_compute_block,
        megacore_mode=megacore_mode,
        attn_logits_soft_cap=attn_logits_soft_cap,
    )[0]


def _multi_queries_paged_attention_nonkernel(
    q: torch.Tensor,
    k_pages: torch.Tensor,
    v_pages: torch.Tensor,
    lengths: torch.Tensor,
    page_indices: torch.Tensor,
    effective_q_lens: torch.Tensor,
    attn_logits_soft_cap: float | None = None,
) -> torch.Tensor:
    """`multi_queries_paged_attention` in plain torch: it reads the lengths."""
    rows = zip(q, lengths.tolist(), page_indices, effective_q_lens.tolist())
    cap = attn_logits_soft_cap
    return torch.stack([_of_sequence(*row, k_pages, v_pages, cap) for row in rows])


def _of_sequence(
    q: torch.Tensor,
    length: int,
    pages: torch.Tensor,
    q_length: int,
    k_pages: torch.Tensor,
    v_pages: torch.Tensor,
    cap: float | None,
) -> torch.Tensor:
    repeats = q.shape[1] // k_pages.shape[0]
    k, v = (
        # [heads, length, d]
        x[:, pages.long()].flatten(1, 2)[:, :length].repeat_interleave(repeats, dim=0)
        for x in (k_pages, v_pages)
    )
    scores = torch.einsum("thd,hld->htl", q, k).float()
    if cap is not None:
        scores = torch.tanh(scores / cap) * cap
    later = torch.ones_like(scores[0], dtype=torch.bool).triu(length - q_length + 1)
    weights = torch.softmax(scores.masked_fill(later, float("-inf")), dim=-1)
    return torch.einsum("htl,hld->thd", weights.to(v.dtype), v)


def multi_queries_paged_attention(
    q: torch.Tensor,
    k_pages: torch.Tensor,
    v_pages: torch.Tensor,
    lengths: torch.Tensor,
    page_indices: torch.Tensor,
    effective_q_lens: torch.Tensor,
    num_kv_pages_per_compute_block: int,
    num_queries_per_compute_block: int,
    use_kernel: bool = True,
    attn_logits_soft_cap: float | None = None,
) -> torch.Tensor:
    """Attention of several queries per sequence, its last, to the sequence's pages.

    JAX has no Pallas kernel for this layout: it is XLA's operators on TPUs as well.

    Args:
        q: [b, t, heads, d], already scaled.
        k_pages, v_pages: [kv_heads, pages, page size, d].
        lengths: int32 [b], of the keys.
        page_indices: int32 [b, pages of a sequence].
        effective_q_lens: int32 [b], how many of the t queries a sequence has.
        num_kv_pages_per_compute_block, num_queries_per_compute_block: accepted for torch_xla's
            sake.
        use_kernel: with False in plain torch, which reads the lengths.

    Returns [b, t, heads, d]. It has no gradient.
    """
    if q.dim() != 4:
        raise ArgumentError(
            f"multi_queries_paged_attention: q has shape {list(q.shape)}; 4 dimensions are needed:"
            " batch, queries, heads, head size"
        )
    tensors = q, k_pages, v_pages, lengths, page_indices, effective_q_lens
    cap = attn_logits_soft_cap
    if not use_kernel or not is_on_device(q):
        return _multi_queries_paged_attention_nonkernel(*tensors, cap)
    name = "xla::multi_queries_paged_attention"
    return kernel_row(name, attend_to_pages, tensors, attn_logits_soft_cap=cap)[0]


def paged_attention_xla(
    q: torch.Tensor,
    k_pages: torch.Tensor,
    v_pages: torch.Tensor,
    lengths: torch.Tensor,
    page_indices: torch.Tensor,
    pages_per_compute_block: int,
    megacore_mode: str | None = None,
    attn_logits_soft_cap: float | None = None,
) -> torch.Tensor:
    """`torch.ops.xla.paged_attention` of tensors that have values."""
    pages = k_pages, v_pages, lengths, page_indices
    return paged_attention(q, *pages, pages_per_compute_block, megacore_mode, attn_logits_soft_cap)


def paged_attention_non_xla(
    q: torch.Tensor,
    k_pages: torch.Tensor,
    v_pages: torch.Tensor,
    lengths: torch.Tensor,
    page_indices: torch.Tensor,
    pages_per_compute_block: int,
    megacore_mode: str | None = None,
    attn_logits_soft_cap: float | None = None,
) -> torch.Tensor:
    """Its result for tensors without values."""
    return non_xla_attetion(q, k_pages, v_pages, "paged")


def multi_queries_paged_attention_xla(
    q: torch.Tensor,
    k_pages: torch.Tensor,
    v_pages: torch.Tensor,
    lengths: torch.Tensor,
    page_indices: torch.Tensor,
    effective_q_lens: torch.Tensor,
    num_kv_pages_per_compute_block: int,
    num_queries_per_compute_block: int,
    use_kernel: bool,
    attn_logits_soft_cap: float | None = None,
) -> torch.Tensor:
    """`torch.ops.xla.multi_queries_paged_attention` of tensors that have values."""
    pages = k_pages, v_pages, lengths, page_indices, effective_q_lens
    blocks = num_kv_pages_per_compute_block, num_queries_per_compute_block
    return multi_queries_paged_attention(q, *pages, *blocks, use_kernel, attn_logits_soft_cap)


def multi_queries_paged_attention_non_xla(
    q: torch.Tensor,
    k_pages: torch.Tensor,
    v_pages: torch.Tensor,
    lengths: torch.Tensor,
    page_indices: torch.Tensor,
    effective_q_lens: torch.Tensor,
    num_kv_pages_per_compute_block: int,
    num_queries_per_compute_block: int,
    use_kernel: bool,
    attn_logits_soft_cap: float | None = None,
) -> torch.Tensor:
    """Its result for tensors without values."""
    return non_xla_attetion(q, k_pages, v_pages, "paged")


_PAGES = "Tensor q, Tensor k_pages, Tensor v_pages, Tensor lengths, Tensor page_indices"
define(
    f"paged_attention({_PAGES}, int pages_per_compute_block, str? megacore_mode=None,"
    " float? attn_logits_soft_cap=None) -> Tensor",
    paged_attention_xla,
    meta=paged_attention_non_xla,
    device=paged_attention_xla,
)
define(
    f"multi_queries_paged_attention({_PAGES}, Tensor effective_q_lens,"
    " int num_kv_pages_per_compute_block, int num_queries_per_compute_block, bool use_kernel,"
    " float? attn_logits_soft_cap=None) -> Tensor",
    multi_queries_paged_attention_xla,
    meta=multi_queries_paged_attention_non_xla,
    device=multi_queries_paged_attention_xla,
)
