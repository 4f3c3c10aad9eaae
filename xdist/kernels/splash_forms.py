"""Splash attention on JAX arrays: by XLA's operators, and by JAX's Pallas kernel for TPUs.

Queries are [b, h, t, d], keys and values [b, kv_heads, t, d]; scores are not scaled.
"""

import dataclasses
import json
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernels
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

from torch_xdist.errors import ArgumentError
from torch_xdist.kernels.rows import axes_of, has_pallas, in_32_bits
from torch_xdist.ops.operands import wide
from torch_xdist.spmd.mesh import Mesh

_Maybe = jax.Array | None


@dataclasses.dataclass(eq=True, frozen=True)
class SplashAttentionConfig:
    """How splash attention runs; `splash_attention` takes it as JSON.

    Attributes:
        sa_block_q, ..., sa_v_layout: of the kernel of a TPU.
        mesh: the text of a mesh, over which the specs shard the operands; None for one device.
        attentiontype_local_sliding: a position sees those at most `slide_window_size` away.
    """

    sa_block_q: int = 2048
    sa_block_kv: int = 2048
    sa_block_kv_compute: int = 2048
    sa_block_q_dkv: int = 2048
    sa_block_kv_dkv: int = 2048
    sa_block_kv_dkv_compute: int = 2048
    sa_block_q_dq: int = 2048
    sa_block_kv_dq: int = 2048
    sa_use_fused_bwd_kernel: bool = True
    sa_q_layout: str = "HEAD_DIM_MINOR"
    sa_k_layout: str = "HEAD_DIM_MINOR"
    sa_v_layout: str = "HEAD_DIM_MINOR"
    mesh: str | None = None
    qkv_partition_spec: tuple[Any, ...] = (("data", "fsdp"), None, None, None)
    segment_ids_partition_spec: tuple[Any, ...] = (("data", "fsdp"), None)
    attentiontype_local_sliding: bool = False
    slide_window_size: int | None = None

    def to_json(self) -> str:
        """As text."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, data: str) -> "SplashAttentionConfig":
        """From the text that `to_json` gives."""
        return cls(**{name: _tuples(value) for name, value in json.loads(data).items()})

    def window(self) -> int | None:
        """How far a position sees; None for as far as there is."""
        if not self.attentiontype_local_sliding:
            return None
        if self.slide_window_size is None:
            raise ArgumentError(
                "splash_attention: attentiontype_local_sliding without a slide_window_size; set it"
            )
        return self.slide_window_size


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _plain(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    ids: _Maybe,
    *,
    causal: bool,
    config: SplashAttentionConfig,
    cap: float | None,
) -> jax.Array:
    batch, _, length, dim = query.shape
    grouped = query.reshape(batch, key.shape[1], -1, length, dim)
    exact = wide(query.dtype)
    scores = jnp.einsum("bkgtd,bksd->bkgts", grouped, key, preferred_element_type=exact)
    if cap is not None:
        scores = jnp.tanh(scores / cap) * cap
    distance = jnp.arange(length)[:, None] - jnp.arange(key.shape[2])
    seen = distance >= 0 if causal else jnp.ones_like(distance, bool)
    window = config.window()
    if window is not None:
        seen &= jnp.abs(distance) <= window
    if ids is not None:
        seen = seen & (ids[:, :, None] == ids[:, None, :])[:, None, None]
    weights = jax.nn.softmax(jnp.where(seen, scores, kernels.DEFAULT_MASK_VALUE), axis=-1)
    out = jnp.einsum("bkgts,bksd->bkgtd", weights.astype(value.dtype), value)
    return out.reshape(query.shape).astype(query.dtype)


def _block_sizes(config: SplashAttentionConfig, q_len: int, kv_len: int) -> kernels.BlockSizes:
    fused = config.sa_use_fused_bwd_kernel
    return kernels.BlockSizes(
        block_q=min(config.sa_block_q, q_len),
        block_kv=min(config.sa_block_kv, kv_len),
        block_kv_compute=min(config.sa_block_kv_compute, kv_len),
        block_q_dkv=min(config.sa_block_q_dkv, q_len),
        block_kv_dkv=min(config.sa_block_kv_dkv, kv_len),
        block_kv_dkv_compute=min(config.sa_block_kv_dkv_compute, kv_len),
        block_q_dq=None if fused else min(config.sa_block_q_dq, q_len),
        block_kv_dq=None if fused else min(config.sa_block_kv_dq, kv_len),
        use_fused_bwd_kernel=fused,
        q_layout=kernels.QKVLayout[config.sa_q_layout],
        k_layout=kernels.QKVLayout[config.sa_k_layout],
        v_layout=kernels.QKVLayout[config.sa_v_layout],
    )


def _pallas(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    ids: _Maybe,
    *,
    causal: bool,
    config: SplashAttentionConfig,
    cap: float | None,
) -> jax.Array:
    shape = query.shape[2], key.shape[2]
    mask: Any = masks.CausalMask(shape) if causal else masks.FullMask(shape)
    window = config.window()
    if window is not None:
        mask &= masks.LocalMask(shape, (window, window), 0)
    kernel = kernels.make_splash_mha(
        mask=masks.MultiHeadMask((mask,) * query.shape[1]),
        head_shards=1,
        q_seq_shards=1,
        block_sizes=_block_sizes(config, *shape),
        attn_logits_soft_cap=cap,
    )
    segments = None if ids is None else kernels.SegmentIds(*[ids.astype(jnp.int32)] * 2)
    return jax.vmap(kernel)(query, key, value, segment_ids=segments)  # type: ignore[no-any-return]


def splash_attention_jax_wrapper(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    decoder_segment_ids: _Maybe,
    causal: bool,
    config: SplashAttentionConfig,
    attn_logits_soft_cap: float | None,
) -> jax.Array:
    """Splash attention of JAX arrays; each device of the configured mesh has its part of them."""
    form = in_32_bits(_pallas) if has_pallas() else _plain

    def local(*arrays: Any) -> jax.Array:
        return form(*arrays, causal=causal, config=config, cap=attn_logits_soft_cap)

    mesh = Mesh.from_str(config.mesh) if config.mesh else None
    if mesh is None:
        return local(query, key, value, decoder_segment_ids)
    qkv = axes_of(mesh, config.qkv_partition_spec)
    parts = mesh.tiling(config.qkv_partition_spec).tiles[0]
    if query.shape[0] % parts:
        raise ArgumentError(
            f"splash_attention: a batch of {query.shape[0]} over {parts} devices, which does not"
            " divide it; Batch dimension should be shardable among the devices of its axes"
        )
    ids = None
    if decoder_segment_ids is not None:
        ids = axes_of(mesh, config.segment_ids_partition_spec)
    return jax.shard_map(
        local,
        mesh=mesh.get_jax_mesh(),
        in_specs=(qkv, qkv, qkv, ids),
        out_specs=qkv,
        check_vma=False,
    )(query, key, value, decoder_segment_ids)


def _jax_grad_f(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    decoder_segment_ids: _Maybe,
    causal: bool,
    config: SplashAttentionConfig,
    attn_logits_soft_cap: float | None,
    grad_output: jax.Array,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The gradients of query, key and value, which compute the attention again."""

    def attend(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
        static = causal, config, attn_logits_soft_cap
        return splash_attention_jax_wrapper(query, key, value, decoder_segment_ids, *static)

    def gradients(grad: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        return jax.vjp(attend, query, key, value)[1](grad)  # type: ignore[no-any-return]

    return (in_32_bits(gradients) if has_pallas() else gradients)(grad_output)  # type: ignore[no-any-return]
