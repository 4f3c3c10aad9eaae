"""Attention by JAX's splash kernels for TPUs: forward and backward, nothing of size t x s kept.

Blocks that a causal mask hides are left out. Queries are [b, heads, t, d], keys and values
[b, kv_heads, s, d], where each head of keys serves a whole number of heads of queries.

Source: `jax.experimental.pallas.ops.tpu.splash_attention`.
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from torch_xdist.errors import ReleaseError

# What a kernel reads of queries and of keys at a time, the first that fits.
_BLOCKS = (1024, 512, 256, 128)
# How much longer a sequence may become for a larger block.
_MOST_PADDING = 1 / 8
# Of the gradients of queries the one kernel for all gradients writes a part for each block of keys.
_MOST_PARTS = 4
# How much of a block of keys is computed with at a time.
_COMPUTED = 512
# What JAX's backward pass is called with first, by the names that a kernel has them under.
_STATIC = (
    *("save_residuals", "mask_value", "is_mqa", "block_sizes", "residual_checkpoint_name"),
    *("mask_function", "attn_logits_soft_cap", "interpret"),
)
# Tests run the kernels on a CPU.
_interprets = [False]


@functools.cache
def _kernels() -> tuple[Any, Any]:
    """JAX's kernels and their masks: a second to import, so where they are used alone."""
    from jax.experimental.pallas.ops.tpu.splash_attention import (
        splash_attention_kernel,
        splash_attention_mask,
    )

    return splash_attention_kernel, splash_attention_mask


def block_of(length: int) -> int:
    """How much of a sequence of this length is read at a time."""
    fits = (n for n in _BLOCKS if -length % n <= length * _MOST_PADDING)
    return next(fits, _BLOCKS[-1])


def _along(x: jax.Array, axis: int, block: int, value: int = 0) -> jax.Array:
    widths = [(0, -n % block if i == axis else 0) for i, n in enumerate(x.shape)]
    return jnp.pad(x, widths, constant_values=value) if any(w for _, w in widths) else x


def _kernel(heads: int, t: int, s: int, is_causal: bool) -> Any:
    """Of whole blocks [heads, t, d], [kv_heads, s, d] and segments; it tells what the backward
    kernels need: the logarithm of each row's sum of exponentials.
    """
    kernels, masks = _kernels()
    q_block, kv_block = block_of(t), block_of(s)
    computed = min(kv_block, _COMPUTED)
    is_fused = s <= kv_block * _MOST_PARTS
    sizes = kernels.BlockSizes(
        block_q=q_block,
        block_kv=kv_block,
        block_kv_compute=computed,
        block_q_dkv=q_block,
        block_kv_dkv=kv_block,
        block_kv_dkv_compute=computed,
        block_q_dq=None if is_fused else q_block,
        block_kv_dq=None if is_fused else kv_block,
        use_fused_bwd_kernel=is_fused,
    )
    mask = masks.CausalMask((t, s)) if is_causal else masks.FullMask((t, s))
    return kernels.make_splash_mha(
        mask=masks.MultiHeadMask((mask,) * heads),
        head_shards=1,
        q_seq_shards=1,
        block_sizes=sizes,
        save_residuals=True,
        interpret=_interprets[0],
    )


def _segments(batch: int, t: int, s: int) -> Any:
    """Padding as a segment of its own, which nothing of the user's is in; None where none is."""
    q_block, kv_block = block_of(t), block_of(s)
    if t % q_block == 0 and s % kv_block == 0:
        return None
    ids = (jnp.zeros((batch, n), jnp.int32) for n in (t, s))
    padded = (_along(x, 1, n, 1) for x, n in zip(ids, (q_block, kv_block)))
    return _kernels()[0].SegmentIds(*padded)


def _padded(scale: float, q: jax.Array, k: jax.Array, v: jax.Array) -> list[jax.Array]:
    # The kernel has no scale. Of 64 and 256 wide heads it is a power of two, which rounds nothing.
    scaled = (q.astype(jnp.float32) * scale).astype(q.dtype)
    blocks = block_of(q.shape[2]), block_of(k.shape[2]), block_of(k.shape[2])
    return [_along(x, 2, block) for x, block in zip((scaled, k, v), blocks)]


def flops(
    queries: Sequence[int], keys: Sequence[int], is_causal: bool, *, is_backward: bool
) -> float:
    """What the kernels compute of arrays of these shapes: XLA does not see into them."""
    (b, heads, t, d), s = queries, keys[2]
    q_block, kv_block = block_of(t), block_of(s)
    rows, columns = -(-t // q_block), -(-s // kv_block)
    seen = rows * columns
    if is_causal:
        seen = sum(min(columns, -(-(i + 1) * q_block // kv_block)) for i in range(rows))
    # Products of t x s x d; the two kernels for gradients both make the scores and theirs.
    products = (5 if columns <= _MOST_PARTS else 7) if is_backward else 2
    return 2.0 * products * b * heads * seen * q_block * kv_block * d


def attend(is_causal: bool, scale: float, *operands: jax.Array) -> tuple[jax.Array, jax.Array]:
    """[b, heads, t, d], and the logarithm of each row's sum of exponentials [b, heads, t]."""
    q, k, _ = operands
    t = q.shape[2]
    # The kernels are written for JAX's default of 32 bits; the device has 64 on.
    with jax.enable_x64(False):
        padded = _padded(scale, *operands)
        kernel = _kernel(q.shape[1], padded[0].shape[2], padded[1].shape[2], is_causal)
        found, (sums,) = jax.vmap(kernel)(*padded, _segments(q.shape[0], t, k.shape[2]))
        return found[:, :, :t], sums[:, :, :t]


def gradients(
    is_causal: bool,
    scale: float,
    operands: Sequence[jax.Array],
    results: Sequence[jax.Array],
    grads: Sequence[jax.Array],
) -> list[jax.Array]:
    """Those of query, key and value, of what `attend` was given, what it gave, and the gradient of
    its first result.
    """
    backward = getattr(_kernels()[0], "_splash_attention_bwd", None)
    if backward is None:
        raise ReleaseError(
            f"jax {jax.__version__} has no _splash_attention_bwd, with which long attention is"
            " differentiated on a TPU; use one of the releases in docs/versions.md, or"
            " torch.nn.attention.sdpa_kernel([SDPBackend.MATH])"
        )
    q, k, _ = operands
    t, s = q.shape[2], k.shape[2]
    with jax.enable_x64(False):
        padded = _padded(scale, *operands)
        kernel = _kernel(q.shape[1], padded[0].shape[2], padded[1].shape[2], is_causal)
        # Rows of padding have gradient 0, whatever they weigh.
        of_rows = [_along(x, 2, block_of(t)) for x in (*results, grads[0])]
        static = (kernel.kwargs[name] for name in _STATIC)

        def of_one(q: Any, k: Any, v: Any, ids: Any, out: Any, sums: Any, grad: Any) -> Any:
            saved = q, k, v, ids, None, out, sums, kernel.dq_mask_info, kernel.dkv_mask_info
            return backward(*static, saved, grad)[3:6]

        grad_q, grad_k, grad_v = jax.vmap(of_one)(*padded, _segments(q.shape[0], t, s), *of_rows)
        grad_q = (grad_q[:, :, :t].astype(jnp.float32) * scale).astype(q.dtype)
        return [grad_q, grad_k[:, :, :s], grad_v[:, :, :s]]
