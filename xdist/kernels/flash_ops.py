"""The forward and the backward pass of flash attention as operators of `torch.ops.xla`.

`fa_custom_forward` and `fa_custom_backward` are what fake tensors and captured graphs see. On the
device each is a row, which each device of a mesh runs on its own part where a sharding is given.
"""

import ast
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import torch

from torch_xdist.core.torch_side.xla_namespace import define
from torch_xdist.errors import ArgumentError
from torch_xdist.kernels import flash_forms
from torch_xdist.kernels.rows import axes_of, form_here, is_on_device, kernel_row
from torch_xdist.spmd.mesh import Mesh, get_global_mesh

_Maybe = torch.Tensor | None
_Tensors = tuple[torch.Tensor, ...]


def _maybe_reshape_input_output_funcs(
    current_shape: Sequence[int], non_batch_dims: int = 3
) -> tuple[Callable[[_Maybe], _Maybe], Callable[[_Maybe], _Maybe]]:
    """(make one batch dim of all leading ones, undo that), for tensors with these leading dims."""
    batch_dims = len(current_shape) - non_batch_dims
    leading = tuple(current_shape[:batch_dims])

    def together(tensor: _Maybe) -> _Maybe:
        return None if tensor is None else tensor.reshape(-1, *tensor.shape[batch_dims:])

    def apart(tensor: _Maybe) -> _Maybe:
        return None if tensor is None else tensor.reshape(*leading, *tensor.shape[1:])

    return together, apart


def _plain_forward(operands: Sequence[Any], causal: bool, sm_scale: float) -> _Tensors:
    """What the row computes of its operands, by torch's own operators."""
    q, k, v, ab, q_ids, kv_ids = operands
    scores = (q @ k.transpose(-1, -2)).to(torch.promote_types(q.dtype, torch.float32))
    scores = (scores if ab is None else scores + ab) * sm_scale
    seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device)
    if causal:
        seen = seen.tril()
    if q_ids is not None and kv_ids is not None:
        seen = seen & (q_ids[:, None, :, None] == kv_ids[:, None, None, :])
    scores = torch.where(seen, scores, scores + flash_forms.MASK)
    top = scores.amax(-1)
    powers = (scores - top[..., None]).exp()
    total = powers.sum(-1)
    return ((powers / total[..., None]).to(v.dtype) @ v).to(q.dtype), total, top


def _run(
    name: str,
    forms: tuple[Callable[..., Any], Callable[..., Any]],
    tensors: Sequence[_Maybe],
    sharding: tuple[Mesh, Any] | None,
    **static: Any,
) -> list[torch.Tensor]:
    """Record a form, on each device's part of the operands where a sharding is given."""
    form = form_here(*forms)
    if sharding is None:
        return kernel_row(name, form, tensors, **static)
    mesh, spec = sharding
    return kernel_row(name, _over(form, str(mesh), spec), tensors, **static)


@functools.lru_cache(maxsize=64)
def _over(form: Callable[..., Any], mesh_text: str, spec: Any) -> Callable[..., Any]:
    """A form that each device runs on its part; operands are known by their number of dims."""
    mesh = Mesh.from_str(mesh_text)
    assert mesh is not None
    by_rank = {4: spec, 3: spec[:3], 2: (spec[0], spec[2])}
    axes = {rank: axes_of(mesh, entries) for rank, entries in by_rank.items()}

    def whole(*arrays: Any, **static: Any) -> Any:
        local = functools.partial(form, **static)
        results = jax.eval_shape(local, *arrays)
        return jax.shard_map(
            local,
            mesh=mesh.get_jax_mesh(),
            in_specs=tuple(None if x is None else axes[x.ndim] for x in arrays),
            out_specs=tuple(axes[x.ndim] for x in results),
            check_vma=False,
        )(*arrays)

    return whole


def _sharding(partition_spec: Any, mesh: Any) -> tuple[Mesh, Any] | None:
    """The mesh and the spec that a call means, as text or as they are; None for none."""
    spec = ast.literal_eval(partition_spec) if isinstance(partition_spec, str) else partition_spec
    if spec is None:
        return None
    found = Mesh.from_str(mesh) if isinstance(mesh, str) else mesh
    found = found or get_global_mesh()
    if found is None:
        raise ArgumentError(
            f"flash_attention: partition_spec {spec} without a mesh; pass mesh=, or call"
            " xs.set_global_mesh first"
        )
    # Of five dims the first two are one batch.
    return found, spec if len(spec) == 4 else (_joined(spec[:2]), *spec[2:])


def _joined(entries: Sequence[Any]) -> Any:
    axes = [a for e in entries for a in (e if isinstance(e, tuple) else (e,)) if a is not None]
    return tuple(axes) or None


def _flat_ids(ids: _Maybe) -> _Maybe:
    return None if ids is None else ids.reshape(-1, ids.shape[-1])


def _forward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    causal: bool,
    q_segment_ids: _Maybe,
    kv_segment_ids: _Maybe,
    sm_scale: float,
    ab: _Maybe,
    sharding: tuple[Mesh, Any] | None = None,
) -> _Tensors:
    if (q_segment_ids is None) != (kv_segment_ids is None):
        raise ArgumentError(
            "flash_attention: one of q_segment_ids and kv_segment_ids is None; both are needed,"
            " or none"
        )
    together, apart = _maybe_reshape_input_output_funcs(q.shape)
    ids = map(_flat_ids, (q_segment_ids, kv_segment_ids))
    tensors: list[Any] = [*map(together, (q, k, v, ab)), *ids]
    if is_on_device(q):
        forms = flash_forms.pallas_forward, flash_forms.plain_forward
        static = {"causal": causal, "sm_scale": sm_scale}
        found: Any = _run("xla::flash_attention", forms, tensors, sharding, **static)
    else:
        found = _plain_forward(tensors, causal, sm_scale)
    out, total, top = map(apart, found)
    assert out is not None and total is not None and top is not None
    return out, total, top


def _backward(
    grad: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    o: torch.Tensor,
    total: torch.Tensor,
    top: torch.Tensor,
    q_segment_ids: _Maybe,
    kv_segment_ids: _Maybe,
    ab: _Maybe,
    causal: bool,
    sm_scale: float,
    sharding: tuple[Mesh, Any] | None = None,
) -> list[_Maybe]:
    """The gradients of q, k, v and ab."""
    together, apart = _maybe_reshape_input_output_funcs(q.shape)
    ids = list(map(_flat_ids, (q_segment_ids, kv_segment_ids)))
    first: list[Any] = list(map(together, (grad, q, k, v, ab)))
    rows: list[Any] = list(map(together, (o, total, top)))
    if is_on_device(q):
        forms = flash_forms.pallas_backward, flash_forms.plain_backward
        static = {"causal": causal, "sm_scale": sm_scale}
        tensors = [*first, *ids, *rows]
        found: Any = _run("xla::flash_attention_backward", forms, tensors, sharding, **static)
    else:
        found = _plain_backward(first[0], first[1:4], first[4], ids, causal, sm_scale)
    return [*map(apart, found), *([None] * (4 - len(found)))]


def plain_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    ab: _Maybe,
    *,
    ids: Sequence[_Maybe],
    causal: bool,
    sm_scale: float,
) -> torch.Tensor:
    """The output of the forward pass by torch's own operators, which have every derivative."""
    together, apart = _maybe_reshape_input_output_funcs(q.shape)
    operands: list[Any] = [*map(together, (q, k, v, ab)), *map(_flat_ids, ids)]
    out = apart(_plain_forward(operands, causal, sm_scale)[0])
    assert out is not None
    return out


def _plain_backward(
    grad: torch.Tensor,
    qkv: Sequence[torch.Tensor],
    ab: _Maybe,
    ids: Sequence[_Maybe],
    causal: bool,
    sm_scale: float,
) -> Sequence[torch.Tensor]:
    with torch.enable_grad():
        inputs = [x.detach().requires_grad_() for x in (*qkv, ab) if x is not None]
        bias = inputs[3] if ab is not None else None
        out = _plain_forward([*inputs[:3], bias, *ids], causal, sm_scale)[0]
    return torch.autograd.grad(out, inputs, grad)


def _fa_custom_forward_single_device(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    causal: bool,
    q_segment_ids: torch.Tensor,
    kv_segment_ids: torch.Tensor,
    sm_scale: float,
    ab: _Maybe,
    ctx_grad: list[bool],
) -> tuple[torch.Tensor, _Maybe, _Maybe]:
    """(output, and for a gradient: sums of the exponentials, largest scores) of whole tensors."""
    out, total, top = _forward(q, k, v, causal, q_segment_ids, kv_segment_ids, sm_scale, ab)
    return (out, total, top) if any(ctx_grad[:3]) else (out, None, None)


def _fa_custom_backward_single_device(
    grad_output: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    o: torch.Tensor,
    l: torch.Tensor,  # noqa: E741 torch_xla's name
    m: torch.Tensor,
    q_segment_ids: _Maybe,
    kv_segment_ids: _Maybe,
    ab: _Maybe,
    causal: bool,
    sm_scale: float,
    q_full_shape: list[int],
    kv_full_shape: list[int],
    ab_full_shape: list[int] | None,
    ctx_grad: list[bool],
) -> tuple[_Maybe, _Maybe, _Maybe, _Maybe]:
    """The gradients of q, k, v and ab that `ctx_grad` asks for; ab's is its third from the end."""
    ids = q_segment_ids, kv_segment_ids
    found = _backward(grad_output, q, k, v, o, l, m, *ids, ab, causal, sm_scale)
    wanted = [*ctx_grad[:3], ctx_grad[-3]]
    grad_q, grad_k, grad_v, grad_ab = (g if want else None for g, want in zip(found, wanted))
    return grad_q, grad_k, grad_v, grad_ab


def fa_custom_forward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    causal: bool,
    q_segment_ids: _Maybe,
    kv_segment_ids: _Maybe,
    sm_scale: float,
    ab: _Maybe,
    partition_spec: str | None,
    mesh: str | None,
    ctx_grad: list[bool],
) -> _Tensors:
    """(output, q, k, v, sums of the exponentials, largest scores, ab), each a tensor of its own."""
    sharding = _sharding(partition_spec, mesh)
    rows = _forward(q, k, v, causal, q_segment_ids, kv_segment_ids, sm_scale, ab, sharding)
    bias = q.new_empty(0) if ab is None else ab.clone()
    return rows[0], q.clone(), k.clone(), v.clone(), *rows[1:], bias


def fa_custom_forward_fake(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    causal: bool,
    q_segment_ids: _Maybe,
    kv_segment_ids: _Maybe,
    sm_scale: float,
    ab: _Maybe,
    partition_spec: str | None,
    mesh: str | None,
    ctx_grad: list[bool],
) -> _Tensors:
    """Tensors like the results of `fa_custom_forward`."""
    wide = torch.promote_types(q.dtype, torch.float32)
    row = q.new_empty(q.shape[:-1], dtype=wide)
    bias = q.new_empty(0) if ab is None else torch.empty_like(ab)
    whole = (torch.empty_like(t) for t in (q, q, k, v))
    return *whole, row, torch.empty_like(row), bias


def fa_custom_backward(
    grad_output: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    o: torch.Tensor,
    l: torch.Tensor,  # noqa: E741 torch_xla's name
    m: torch.Tensor,
    q_segment_ids: _Maybe,
    kv_segment_ids: _Maybe,
    ab: _Maybe,
    causal: bool,
    sm_scale: float,
    partition_spec: str | None,
    mesh: str | None,
    q_full_shape: list[int],
    kv_full_shape: list[int],
    ab_full_shape: list[int] | None,
    ctx_grad: list[bool],
) -> _Tensors:
    """The gradients of q, k, v and ab; that of no ab is empty."""
    ids = q_segment_ids, kv_segment_ids
    sharding = _sharding(partition_spec, mesh)
    found = _backward(grad_output, q, k, v, o, l, m, *ids, ab, causal, sm_scale, sharding)
    return tuple(q.new_empty(0) if g is None else g for g in found)


def fa_custom_backward_fake(
    grad_output: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    o: torch.Tensor,
    l: torch.Tensor,  # noqa: E741 torch_xla's name
    m: torch.Tensor,
    q_segment_ids: _Maybe,
    kv_segment_ids: _Maybe,
    ab: _Maybe,
    causal: bool,
    sm_scale: float,
    partition_spec: str | None,
    mesh: str | None,
    q_full_shape: list[int],
    kv_full_shape: list[int],
    ab_full_shape: list[int] | None,
    ctx_grad: list[bool],
) -> _Tensors:
    """Tensors like the results of `fa_custom_backward`."""
    bias = q.new_empty(0) if ab is None else torch.empty_like(ab)
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v), bias


_COMMON = "Tensor? q_segment_ids, Tensor? kv_segment_ids"
define(
    f"fa_custom_forward(Tensor q, Tensor k, Tensor v, bool causal, {_COMMON}, float sm_scale,"
    " Tensor? ab, str? partition_spec, str? mesh, bool[] ctx_grad)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    fa_custom_forward,
    meta=fa_custom_forward_fake,
    device=fa_custom_forward,
)
define(
    "fa_custom_backward(Tensor grad_output, Tensor q, Tensor k, Tensor v, Tensor o, Tensor l,"
    f" Tensor m, {_COMMON}, Tensor? ab, bool causal, float sm_scale, str? partition_spec,"
    " str? mesh, SymInt[] q_full_shape, SymInt[] kv_full_shape, SymInt[]? ab_full_shape,"
    " bool[] ctx_grad) -> (Tensor, Tensor, Tensor, Tensor)",
    fa_custom_backward,
    meta=fa_custom_backward_fake,
    device=fa_custom_backward,
)
FORWARD = torch.ops.xla.fa_custom_forward.default
BACKWARD = torch.ops.xla.fa_custom_backward.default
