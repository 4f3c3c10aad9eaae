"""Flash attention on JAX arrays, by XLA's operators and by JAX's Pallas kernel for TPUs.

Queries are [b, h, t, d], keys and values [b, h, s, d]. Scores are `(q k^T + ab) * sm_scale`; what
may not be seen gets a large negative number added, so a row that sees nothing weighs all alike.
The forward pass also returns, for each row, the sum of the exponentials and the largest score.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu import flash_attention as kernels

from torch_xdist.ops.operands import wide

_Maybe = jax.Array | None
_Gradients = tuple[jax.Array, ...]
MASK = -0.7 * float(jnp.finfo(jnp.float32).max)
# What the kernel reads at a time; a sequence is padded to a whole number of the smallest.
_BLOCKS = (512, 256, 128)
_BATCH_BLOCK = 2
# The segment of padding, which no position of the user's is in.
_NOWHERE = jnp.iinfo(jnp.int32).min


def _scores(
    q: jax.Array,
    k: jax.Array,
    ab: _Maybe,
    q_ids: _Maybe,
    kv_ids: _Maybe,
    causal: bool,
    sm_scale: float,
) -> jax.Array:
    scores = jnp.einsum("bhtd,bhsd->bhts", q, k, preferred_element_type=wide(k.dtype))
    if ab is not None:
        scores += ab.astype(scores.dtype)
    scores *= sm_scale
    seen = jnp.ones(scores.shape[-2:], bool)
    if causal:
        seen = jnp.arange(seen.shape[0])[:, None] >= jnp.arange(seen.shape[1])
    if q_ids is not None and kv_ids is not None:
        seen = seen & (q_ids[:, None, :, None] == kv_ids[:, None, None, :])
    return scores + jnp.where(seen, 0, MASK).astype(scores.dtype)


def plain_forward(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    ab: _Maybe,
    q_ids: _Maybe,
    kv_ids: _Maybe,
    *,
    causal: bool,
    sm_scale: float,
) -> _Gradients:
    """(output [b, h, t, d], sums of the exponentials [b, h, t], largest scores [b, h, t])."""
    scores = _scores(q, k, ab, q_ids, kv_ids, causal, sm_scale)
    top = scores.max(-1)
    powers = jnp.exp(scores - top[..., None])
    total = powers.sum(-1)
    weights = (powers / total[..., None]).astype(v.dtype)
    out = jnp.einsum("bhts,bhsd->bhtd", weights, v, preferred_element_type=wide(v.dtype))
    return out.astype(q.dtype), total, top


def plain_backward(
    grad: jax.Array,
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    ab: _Maybe,
    q_ids: _Maybe,
    kv_ids: _Maybe,
    out: jax.Array,
    total: jax.Array,
    top: jax.Array,
    *,
    causal: bool,
    sm_scale: float,
) -> _Gradients:
    """The gradients of q, k, v, and of ab where there is one."""
    scores = _scores(q, k, ab, q_ids, kv_ids, causal, sm_scale)
    weights = jnp.exp(scores - top[..., None]) / total[..., None]
    dtype = weights.dtype
    small = weights.astype(grad.dtype)
    grad_v = jnp.einsum("bhts,bhtd->bhsd", small, grad, preferred_element_type=dtype)
    grad_weights = jnp.einsum("bhtd,bhsd->bhts", grad, v, preferred_element_type=dtype)
    mean = (out.astype(dtype) * grad.astype(dtype)).sum(-1, keepdims=True)
    grad_scores = weights * (grad_weights - mean) * sm_scale
    small = grad_scores.astype(q.dtype)
    grad_q = jnp.einsum("bhts,bhsd->bhtd", small, k, preferred_element_type=dtype)
    grad_k = jnp.einsum("bhts,bhtd->bhsd", small, q, preferred_element_type=dtype)
    found = grad_q.astype(q.dtype), grad_k.astype(k.dtype), grad_v.astype(v.dtype)
    return found if ab is None else (*found, grad_scores.astype(ab.dtype))


class _Padded(NamedTuple):
    """Operands of whole blocks, and the blocks of queries and keys."""

    q: jax.Array
    k: jax.Array
    v: jax.Array
    ab: _Maybe
    ids: kernels.SegmentIds | None
    q_block: int
    kv_block: int


def _along(x: jax.Array, axis: int, size: int, value: float = 0) -> jax.Array:
    widths = [(0, size - n if i == axis else 0) for i, n in enumerate(x.shape)]
    return jnp.pad(x, widths, constant_values=value)


def _padded(
    q: jax.Array, k: jax.Array, v: jax.Array, ab: _Maybe, q_ids: _Maybe, kv_ids: _Maybe
) -> _Padded:
    t, s = q.shape[2], k.shape[2]
    long_t, long_s = (n + -n % _BLOCKS[-1] for n in (t, s))
    ids = None
    if q_ids is not None and kv_ids is not None:
        ids = q_ids.astype(jnp.int32), kv_ids.astype(jnp.int32)
    elif long_s != s:
        ids = jnp.zeros((q.shape[0], t), jnp.int32), jnp.zeros((q.shape[0], s), jnp.int32)
    if ids is not None:
        ids = _along(ids[0], 1, long_t), _along(ids[1], 1, long_s, _NOWHERE)
    if ab is not None:
        ab = _along(_along(ab, 2, long_t), 3, long_s)
    return _Padded(
        _along(q, 2, long_t),
        _along(k, 2, long_s),
        _along(v, 2, long_s),
        ab,
        None if ids is None else kernels.SegmentIds(*ids),
        next(n for n in _BLOCKS if long_t % n == 0),
        next(n for n in _BLOCKS if long_s % n == 0),
    )


def pallas_forward(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    ab: _Maybe,
    q_ids: _Maybe,
    kv_ids: _Maybe,
    *,
    causal: bool,
    sm_scale: float,
) -> _Gradients:
    """`plain_forward` by the kernel."""
    whole = _padded(q, k, v, ab, q_ids, kv_ids)
    batch_block = min(_BATCH_BLOCK, q.shape[0])
    blocks = batch_block, whole.q_block, whole.kv_block, whole.kv_block
    found = kernels._flash_attention_impl(
        whole.q, whole.k, whole.v, whole.ab, whole.ids, True, causal, sm_scale, *blocks, False
    )
    out, total, top = (x[:, :, : q.shape[2]] for x in found)
    return out, total, top


def pallas_backward(
    grad: jax.Array,
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    ab: _Maybe,
    q_ids: _Maybe,
    kv_ids: _Maybe,
    out: jax.Array,
    total: jax.Array,
    top: jax.Array,
    *,
    causal: bool,
    sm_scale: float,
) -> _Gradients:
    """`plain_backward` by the kernels."""
    t, s = q.shape[2], k.shape[2]
    whole = _padded(q, k, v, ab, q_ids, kv_ids)
    mean = (out.astype(jnp.float32) * grad.astype(jnp.float32)).sum(-1)
    long_t = whole.q.shape[2]
    # Padded rows have gradient 0, whatever their weights are: a sum of 1 keeps them finite.
    of_rows = [
        _along(x, 2, long_t, fill) for x, fill in ((total, 1), (top, 0), (grad, 0), (mean, 0))
    ]
    operands = whole.q, whole.k, whole.v, whole.ab, whole.ids, *of_rows
    static: dict[str, Any] = {
        "sm_scale": sm_scale,
        "causal": causal,
        "mask_value": MASK,
        "debug": False,
    }
    q_block, kv_block = whole.q_block, whole.kv_block
    grad_k, grad_v = kernels._flash_attention_bwd_dkv(
        *operands, block_q_major=q_block, block_q=q_block,
        block_k_major=kv_block, block_k=kv_block, **static,
    )  # fmt: skip
    grad_q, grad_ab = kernels._flash_attention_bwd_dq(
        *operands, block_q_major=q_block, block_k_major=kv_block, block_k=kv_block, **static
    )
    found = grad_q[:, :, :t], grad_k[:, :, :s], grad_v[:, :, :s]
    return found if ab is None else (*found, grad_ab[:, :, :t, :s])
