"""Attention over keys and values in pages, on JAX arrays, by XLA's operators.

A sequence's keys are those of its pages one after the other, up to its length. Scores are computed
in float32. JAX's Pallas kernels compute the same on TPUs, page by page.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu.paged_attention import paged_attention
from jax.experimental.pallas.ops.tpu.ragged_paged_attention import ragged_paged_attention


def _capped(scores: jax.Array, cap: float | None) -> jax.Array:
    """Scores between -cap and cap, by tanh."""
    return scores if cap is None else jnp.tanh(scores / cap) * cap


def _grouped(queries: jax.Array, kv_heads: int) -> jax.Array:
    """[t, heads, d] as [t, kv_heads, heads of each, d]."""
    return queries.reshape(queries.shape[0], kv_heads, -1, queries.shape[-1])


def attend_to_pages(
    q: jax.Array,
    k_pages: jax.Array,
    v_pages: jax.Array,
    lengths: jax.Array,
    page_indices: jax.Array,
    effective_q_lens: jax.Array,
    *,
    attn_logits_soft_cap: float | None,
) -> jax.Array:
    """[b, t, heads, d]; the first `effective_q_lens` queries are the last of each sequence.

    Args:
        q: [b, t, heads, d], already scaled.
        k_pages, v_pages: [kv_heads, pages, page size, d].
        lengths: [b], of the keys.
        page_indices: [b, pages of a sequence].
    """
    kv_heads, dim = k_pages.shape[0], k_pages.shape[-1]

    def of_sequence(
        q: jax.Array, length: jax.Array, pages: jax.Array, q_length: jax.Array
    ) -> jax.Array:
        k, v = (x[:, pages].reshape(kv_heads, -1, dim) for x in (k_pages, v_pages))
        queries = _grouped(q, kv_heads)
        scores = jnp.einsum("tkgd,kld->kgtl", queries, k, preferred_element_type=jnp.float32)
        last = jnp.arange(q.shape[0])[:, None] + length - q_length
        places = jnp.arange(k.shape[1])
        seen = (places <= last) & (places < length)
        scores = jnp.where(seen, _capped(scores, attn_logits_soft_cap), -jnp.inf)
        # A sequence without keys gives 0.
        weights = jnp.where(seen, jax.nn.softmax(scores, axis=-1), 0).astype(v.dtype)
        return jnp.einsum("kgtl,kld->tkgd", weights, v).reshape(q.shape)

    return jax.vmap(of_sequence)(q, lengths, page_indices, effective_q_lens).astype(q.dtype)


def plain_paged(
    q: jax.Array,
    k_pages: jax.Array,
    v_pages: jax.Array,
    lengths: jax.Array,
    page_indices: jax.Array,
    *,
    pages_per_compute_block: int,
    megacore_mode: str | None,
    attn_logits_soft_cap: float | None,
) -> jax.Array:
    """One query for each sequence, its last: [b, heads, d]."""
    operands = q[:, None], k_pages, v_pages, lengths, page_indices, jnp.ones_like(lengths)
    return attend_to_pages(*operands, attn_logits_soft_cap=attn_logits_soft_cap)[:, 0]


def pallas_paged(
    q: jax.Array,
    k_pages: jax.Array,
    v_pages: jax.Array,
    lengths: jax.Array,
    page_indices: jax.Array,
    **static: Any,
) -> jax.Array:
    """`plain_paged` by the kernel."""
    indices = lengths.astype(jnp.int32), page_indices.astype(jnp.int32)
    return paged_attention(q, k_pages, v_pages, *indices, **static).astype(q.dtype)


def plain_ragged(
    q: jax.Array,
    kv_pages: jax.Array,
    kv_lens: jax.Array,
    page_indices: jax.Array,
    cu_q_lens: jax.Array,
    num_seqs: jax.Array,
    *,
    sm_scale: float,
    sliding_window: int | None,
    soft_cap: float | None,
    mask_value: float,
    k_scale: float | None,
    v_scale: float | None,
    **of_the_kernel: Any,
) -> jax.Array:
    """[tokens, heads, d] of sequences one after the other; tokens of none give 0.

    Args:
        q: [tokens, heads, d].
        kv_pages: [pages, page size, 2 * kv_heads, d]: keys and values in turn.
        kv_lens: [s], of the keys of each sequence.
        page_indices: [s, pages of a sequence].
        cu_q_lens: [s + 1], where the queries of each sequence begin.
        num_seqs: [1], how many of the s sequences there are.
    """
    kv_heads, dim = kv_pages.shape[2] // 2, kv_pages.shape[3]
    tokens, queries = jnp.arange(q.shape[0]), _grouped(q, kv_heads)

    def add(number: jax.Array, found: jax.Array) -> jax.Array:
        kv = kv_pages[page_indices[number]].reshape(-1, kv_heads, 2, dim)
        k, v = _scaled(kv[:, :, 0], k_scale, q.dtype), _scaled(kv[:, :, 1], v_scale, q.dtype)
        scores = jnp.einsum("tkgd,lkd->kgtl", queries, k, preferred_element_type=jnp.float32)
        begin, end = cu_q_lens[number], cu_q_lens[number + 1]
        last, places = (tokens - end + kv_lens[number])[:, None], jnp.arange(k.shape[0])
        seen = (places <= last) & (places < kv_lens[number])
        if sliding_window is not None:
            seen &= places > last - sliding_window
        scores = jnp.where(seen, _capped(scores * sm_scale, soft_cap), mask_value)
        weights = jax.nn.softmax(scores, axis=-1).astype(v.dtype)
        out = jnp.einsum("kgtl,lkd->tkgd", weights, v).reshape(q.shape).astype(q.dtype)
        is_here = (tokens >= begin) & (tokens < end) & (number < num_seqs[0])
        return jnp.where(is_here[:, None, None], out, found)

    return jax.lax.fori_loop(0, len(kv_lens), add, jnp.zeros_like(q))


def _scaled(x: jax.Array, scale: float | None, dtype: Any) -> jax.Array:
    return x if scale is None else (x.astype(jnp.float32) * scale).astype(dtype)


def pallas_ragged(
    q: jax.Array, kv_pages: jax.Array, *indices: jax.Array, **static: Any
) -> jax.Array:
    """`plain_ragged` by the kernel; what it gives tokens of no sequence is of no meaning."""
    return ragged_paged_attention(q, kv_pages, *(x.astype(jnp.int32) for x in indices), **static)
