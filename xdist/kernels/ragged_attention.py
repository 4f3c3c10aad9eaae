"""Attention of sequences of every length, one after the other, over pages; torch_xla's names."""

import torch

from torch_xdist.core.torch_side.xla_namespace import define
from torch_xdist.errors import ArgumentError
from torch_xdist.kernels.flash_forms import MASK
from torch_xdist.kernels.paged_forms import pallas_ragged, plain_ragged
from torch_xdist.kernels.rows import form_here, is_on_device, kernel_row
from torch_xdist.kernels.torch_ops import non_xla_ragged_paged_attention

# What a TPU's kernel may use of its vector memory, where nobody says.
_VMEM_BYTES = 120 * 1024 * 1024


def _ragged_paged_attention_runtime_check(
    q: torch.Tensor,
    kv_pages: torch.Tensor,
    kv_lens: torch.Tensor,
    page_indices: torch.Tensor,
    cu_q_lens: torch.Tensor,
    num_seqs: torch.Tensor,
) -> None:
    """Raise ArgumentError (a ValueError) where lengths and shapes do not fit; reads them."""
    count, (most, pages) = int(num_seqs[0]), page_indices.shape
    if count > most:
        raise ArgumentError(
            f"ragged_paged_attention: num_seqs[0]={count} must be less or equal to"
            f" max_num_seqs={most}, the rows of page_indices"
        )
    ends, lengths = cu_q_lens.tolist()[: count + 1], kv_lens.tolist()[:count]
    needed = -(-max(lengths, default=0) // kv_pages.shape[1])
    if pages < needed:
        raise ArgumentError(
            f"ragged_paged_attention: pages_per_seq={pages} must be greater or equal to {needed}:"
            f" the longest sequence has {max(lengths)} keys, and a page {kv_pages.shape[1]}"
        )
    if ends[-1] > q.shape[0]:
        raise ArgumentError(
            f"ragged_paged_attention: Total q tokens {ends[-1]} must be less or equal to"
            f" max_num_batched_tokens={q.shape[0]}, the rows of q"
        )
    for number, (begin, end, length) in enumerate(zip(ends, ends[1:], lengths)):
        if end - begin > length:
            raise ArgumentError(
                f"ragged_paged_attention: q_len={end - begin} must be less or equal to"
                f" kv_len={length} at sequence {number}"
            )


def _ragged_paged_attention_nonkernel(
    queries: torch.Tensor,
    kv_pages: torch.Tensor,
    kv_lens: torch.Tensor,
    page_indices: torch.Tensor,
    cu_q_lens: torch.Tensor,
    num_seqs: torch.Tensor,
    k_scale: float | None,
    v_scale: float | None,
    *,
    sm_scale: float = 1.0,
    sliding_window: int | None = None,
    soft_cap: float | None = None,
    mask_value: float = MASK,
) -> torch.Tensor:
    """`ragged_paged_attention` in plain torch, of the tokens there are: it reads the lengths."""
    operands = queries, kv_pages, kv_lens, page_indices, cu_q_lens, num_seqs
    _ragged_paged_attention_runtime_check(*operands)
    count = int(num_seqs[0])
    ends, lengths = cu_q_lens.tolist(), kv_lens.tolist()
    kv_heads = kv_pages.shape[2] // 2
    found = []
    for begin, end, length, pages in zip(ends[:count], ends[1:], lengths, page_indices):
        kv = kv_pages[pages.long()].flatten(0, 1)[:length]
        k, v = _scaled(kv[:, 0::2], k_scale, queries), _scaled(kv[:, 1::2], v_scale, queries)
        k, v = (x.repeat_interleave(queries.shape[1] // kv_heads, dim=1) for x in (k, v))
        scores = torch.einsum("thd,lhd->htl", queries[begin:end], k).float() * sm_scale
        if soft_cap is not None:
            scores = torch.tanh(scores / soft_cap) * soft_cap
        ones = torch.ones_like(scores[0], dtype=torch.bool)
        hidden = ones.triu(length - (end - begin) + 1)
        if sliding_window is not None:
            hidden |= ones.tril(length - (end - begin) - sliding_window)
        weights = torch.softmax(scores.masked_fill(hidden, mask_value), dim=-1).to(v.dtype)
        found.append(torch.einsum("htl,lhd->thd", weights, v).to(queries.dtype))
    return torch.cat(found) if found else queries[:0]


def _scaled(x: torch.Tensor, scale: float | None, like: torch.Tensor) -> torch.Tensor:
    return x if scale is None else (x.float() * scale).to(like.dtype)


def ragged_paged_attention(
    q: torch.Tensor,
    kv_pages: torch.Tensor,
    kv_lens: torch.Tensor,
    page_indices: torch.Tensor,
    cu_q_lens: torch.Tensor,
    num_seqs: torch.Tensor,
    *,
    sm_scale: float = 1.0,
    sliding_window: int | None = None,
    soft_cap: float | None = None,
    mask_value: float | None = None,
    k_scale: float | None = None,
    v_scale: float | None = None,
    use_kernel: bool = True,
    num_kv_pages_per_block: int | None = None,
    num_queries_per_block: int | None = None,
    vmem_limit_bytes: int | None = None,
) -> torch.Tensor:
    """Attention of sequences whose queries lie one after the other, to the sequences' pages.

    Args:
        q: [tokens, heads, d].
        kv_pages: [pages, page size, 2 * kv_heads, d]: keys and values in turn.
        kv_lens: int32 [s], of the keys.
        page_indices: int32 [s, pages of a sequence].
        cu_q_lens: int32 [s + 1], where the queries of each sequence begin; they are its last.
        num_seqs: int32 [1], how many of the s sequences there are.
        sliding_window: how many keys a query sees, itself included.
        soft_cap: scores `x` become `soft_cap * tanh(x / soft_cap)`.
        k_scale, v_scale: multiply keys and values, which may be of another dtype.
        use_kernel: with False in plain torch, which reads the lengths and checks them.
        num_kv_pages_per_block, num_queries_per_block, vmem_limit_bytes: for the kernel of a TPU.

    Returns [tokens, heads, d]; what tokens of no sequence get has no meaning. No gradient.
    """
    mask_value = MASK if mask_value is None else mask_value
    operands = q, kv_pages, kv_lens, page_indices, cu_q_lens, num_seqs
    if not use_kernel:
        return _ragged_paged_attention_nonkernel(
            *operands, k_scale, v_scale, sm_scale=sm_scale, sliding_window=sliding_window,
            soft_cap=soft_cap, mask_value=mask_value,
        )  # fmt: skip
    return kernel_row(
        "xla::ragged_paged_attention",
        form_here(pallas_ragged, plain_ragged),
        operands,
        sm_scale=sm_scale,
        sliding_window=sliding_window,
        soft_cap=soft_cap,
        mask_value=mask_value,
        k_scale=k_scale,
        v_scale=v_scale,
        num_kv_pages_per_block=num_kv_pages_per_block,
        num_queries_per_block=num_queries_per_block,
        vmem_limit_bytes=_VMEM_BYTES if vmem_limit_bytes is None else vmem_limit_bytes,
    )[0]


def ragged_paged_attention_xla(
    q: torch.Tensor,
    kv_pages: torch.Tensor,
    kv_lens: torch.Tensor,
    page_indices: torch.Tensor,
    cu_q_lens: torch.Tensor,
    num_seqs: torch.Tensor,
    sm_scale: float = 1.0,
    sliding_window: int | None = None,
    soft_cap: float | None = None,
    mask_value: float | None = None,
    k_scale: float | None = None,
    v_scale: float | None = None,
    use_kernel: bool = True,
    num_kv_pages_per_block: int | None = None,
    num_queries_per_block: int | None = None,
    vmem_limit_bytes: int | None = None,
) -> torch.Tensor:
    """`torch.ops.xla.ragged_paged_attention` of tensors that have values."""
    # On the CPU plain torch, which gives the tokens of no sequence nothing.
    on_device = is_on_device(q)
    found = ragged_paged_attention(
        q,
        kv_pages,
        kv_lens,
        page_indices,
        cu_q_lens,
        num_seqs,
        sm_scale=sm_scale,
        sliding_window=sliding_window,
        soft_cap=soft_cap,
        mask_value=mask_value,
        k_scale=k_scale,
        v_scale=v_scale,
        use_kernel=use_kernel and on_device,
        num_kv_pages_per_block=num_kv_pages_per_block,
        num_queries_per_block=num_queries_per_block,
        vmem_limit_bytes=vmem_limit_bytes,
    )
    if len(found) == len(q):
        return found
    return torch.cat([found, torch.zeros_like(q[len(found) :])])


def ragged_paged_attention_non_xla(
    q: torch.Tensor,
    kv_pages: torch.Tensor,
    kv_lens: torch.Tensor,
    page_indices: torch.Tensor,
    cu_q_lens: torch.Tensor,
    num_seqs: torch.Tensor,
    sm_scale: float = 1.0,
    sliding_window: int | None = None,
    soft_cap: float | None = None,
    mask_value: float | None = None,
    k_scale: float | None = None,
    v_scale: float | None = None,
    use_kernel: bool = True,
    num_kv_pages_per_block: int | None = None,
    num_queries_per_block: int | None = None,
    vmem_limit_bytes: int | None = None,
) -> torch.Tensor:
    """Its result for tensors without values."""
    return non_xla_ragged_paged_attention(q, kv_pages, "paged")


define(
    "ragged_paged_attention(Tensor q, Tensor kv_pages, Tensor kv_lens, Tensor page_indices,"
    " Tensor cu_q_lens, Tensor num_seqs, float sm_scale=1, int? sliding_window=None,"
    " float? soft_cap=None, float? mask_value=None, float? k_scale=None, float? v_scale=None,"
    " bool use_kernel=True, int? num_kv_pages_per_block=None, int? num_queries_per_block=None,"
    " int? vmem_limit_bytes=None) -> Tensor",
    ragged_paged_attention_xla,
    meta=ragged_paged_attention_non_xla,
    device=ragged_paged_attention_xla,
)
