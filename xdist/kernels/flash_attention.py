"""Flash attention by torch_xla's names: one function, its gradient, `torch.ops.xla`'s operator."""

import functools
from typing import Any

import torch
from jax.experimental.pallas.ops.tpu.flash_attention import SegmentIds

from torch_xdist.core.torch_side.xla_namespace import define
from torch_xdist.errors import ArgumentError
from torch_xdist.kernels.flash_forms import MASK
from torch_xdist.kernels.flash_ops import BACKWARD, FORWARD, plain_attention
from torch_xdist.kernels.pallas import to_jax_shape_dtype_struct
from torch_xdist.kernels.torch_ops import differentiate, gradients, non_xla_attetion

_Maybe = torch.Tensor | None


def safe_empty_like(tensor: _Maybe) -> _Maybe:
    """An empty tensor like another one; None for None."""
    return None if tensor is None else torch.empty_like(tensor)


def generate_ctx_need_grad(*args: Any) -> list[bool]:
    """For each argument, whether it is a tensor that needs a gradient."""
    return [isinstance(arg, torch.Tensor) and arg.requires_grad for arg in args]


def _pad_to_block_size(
    tensor: torch.Tensor, block_size: int, dim: int, padding_minus_inf: bool = False
) -> tuple[torch.Tensor, int]:
    """(`tensor` with `dim` a multiple of `block_size`, by how many it grew)."""
    missing = -tensor.shape[dim] % block_size
    if not missing:
        return tensor, 0
    shape = list(tensor.shape)
    shape[dim] = missing
    value = torch.finfo(tensor.dtype).min if padding_minus_inf else 0
    return torch.cat([tensor, tensor.new_full(shape, value)], dim=dim), missing


class FlashAttention(torch.autograd.Function):
    """`flash_attention` for autograd. The names in capitals are those of torch_xla's kernel."""

    MIN_BLOCK_SIZE = 128
    DEFAULT_MASK_VALUE = MASK
    DEFAULT_BLOCK_SIZES = {
        "block_q": 512,
        "block_k_major": 512,
        "block_k": 512,
        "block_b": 2,
        "block_q_major_dkv": 512,
        "block_k_major_dkv": 512,
        "block_q_dkv": 512,
        "block_k_dkv": 512,
        "block_q_dq": 1024,
        "block_k_dq": 256,
        "block_k_major_dq": 512,
    }
    NUM_LANES = 128
    NUM_SUBLANES = 8

    @staticmethod
    def prepare_segment_ids(
        q_segment_ids: _Maybe, kv_segment_ids: _Maybe
    ) -> tuple[SegmentIds | None, _Maybe, _Maybe]:
        """(JAX's abstract ids, both ids as the kernel of a TPU lays them out); None for none."""
        if q_segment_ids is None and kv_segment_ids is None:
            return None, None, None
        if q_segment_ids is None or kv_segment_ids is None:
            raise ArgumentError(
                "prepare_segment_ids: one of q_segment_ids and kv_segment_ids is None; both are"
                " needed, or none"
            )
        shapes: Any = map(to_jax_shape_dtype_struct, (q_segment_ids, kv_segment_ids))
        lanes, sublanes = FlashAttention.NUM_LANES, FlashAttention.NUM_SUBLANES
        columns = q_segment_ids.unsqueeze(-1).expand(*q_segment_ids.shape, lanes)
        batch, length = kv_segment_ids.shape
        rows = kv_segment_ids.unsqueeze(1).expand(batch, sublanes, length)
        return SegmentIds(*shapes), columns, rows

    @staticmethod
    def forward(
        ctx: Any,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        causal: bool,
        q_segment_ids: _Maybe,
        kv_segment_ids: _Maybe,
        sm_scale: float,
        ab: _Maybe,
        partition_spec: Any,
        mesh: Any,
    ) -> torch.Tensor:
        ids = q_segment_ids, kv_segment_ids
        ctx.settings = causal, sm_scale
        # Operators take no meshes, but their text.
        ctx.sharding = tuple(None if x is None else str(x) for x in (partition_spec, mesh))
        needed = generate_ctx_need_grad(q, k, v, causal, *ids, sm_scale, ab, *ctx.sharding)
        o, _, _, _, total, top, _ = FORWARD(
            q, k, v, causal, *ids, sm_scale, ab, *ctx.sharding, needed
        )
        ctx.save_for_backward(q, k, v, o, total, top, *ids, ab)
        return o

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[_Maybe, ...]:
        q, k, v, *_, q_ids, kv_ids, ab = ctx.saved_tensors
        if torch.is_grad_enabled():
            causal, sm_scale = ctx.settings
            attend = functools.partial(
                plain_attention, ids=(q_ids, kv_ids), causal=causal, sm_scale=sm_scale
            )
            needs = [*ctx.needs_input_grad[:3], ctx.needs_input_grad[7]]
            *again, bias = gradients(attend, (q, k, v, ab), needs, grad_output)
            return *again, None, None, None, None, bias, None, None
        shapes = list(q.shape), list(k.shape), None if ab is None else list(ab.shape)
        needed = list(ctx.needs_input_grad)
        *grads, grad_ab = BACKWARD(
            grad_output.contiguous(), *ctx.saved_tensors, *ctx.settings, *ctx.sharding, *shapes,
            needed,
        )  # fmt: skip
        bias = grad_ab if ab is not None and needed[7] else None
        return *grads, None, None, None, None, bias, None, None


def flash_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    causal: bool = False,
    q_segment_ids: _Maybe = None,
    kv_segment_ids: _Maybe = None,
    sm_scale: float = 1.0,
    *,
    ab: _Maybe = None,
    partition_spec: Any = None,
    mesh: Any = None,
) -> torch.Tensor:
    """softmax((q k^T + ab) * sm_scale) v, with a gradient.

    Args:
        q: [b, h, t, d]; k and v: [b, h, s, d]. There may be more leading dims.
        causal: a position sees itself and earlier ones.
        q_segment_ids, kv_segment_ids: [b, t] and [b, s]; positions see their own segment only.
        ab: [b, h, t, s], added to the products.
        partition_spec, mesh: in SPMD mode, how q, k, v and ab are sharded: an entry for each of
            their dims; `t` and `d` must be whole. The mesh is the global one where none is given.

    Returns [b, h, t, d].
    """
    if ab is not None:
        ab = ab.expand(*q.shape[:-1], k.shape[-2])
    return FlashAttention.apply(  # type: ignore[no-any-return, no-untyped-call]
        q, k, v, causal, q_segment_ids, kv_segment_ids, sm_scale, ab, partition_spec, mesh
    )


def flash_attention_xla(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool = False
) -> torch.Tensor:
    """`torch.ops.xla.flash_attention` of tensors that have values."""
    return flash_attention(q, k, v, causal=causal)


def flash_attention_non_xla(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool = False
) -> torch.Tensor:
    """Its result for tensors without values."""
    return non_xla_attetion(q, k, v, "flash")


define(
    "flash_attention(Tensor q, Tensor k, Tensor v, bool casual=False) -> Tensor",
    flash_attention_xla,
    meta=flash_attention_non_xla,
    device=flash_attention_xla,
)
differentiate("flash_attention", flash_attention_xla)
