"""Operators with a meaning of their own: copies between devices, reads, storage, splits."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from torch_xdist.core import (
    cuts,
    device,
    sparse,
    sparse_math,  # noqa: F401 its kernels
    transfer,
    views,
    writes,
)
from torch_xdist.core.plan import Op
from torch_xdist.core.tensor import XlaTensor, wrap
from torch_xdist.core.trace import contiguous_strides

Handler = Callable[[Op, Sequence[Any], dict[str, Any]], Any]
HANDLERS: dict[str, Handler] = {}
_SLICE = views.op_of("aten.slice.Tensor")
_SELECT = views.op_of("aten.select.int")
_VIEW = views.op_of("aten.view.default")
_NATIVE = torch.ops.aten._native_batch_norm_legit


def handles(*names: str) -> Callable[[Handler], Handler]:
    def enter(handler: Handler) -> Handler:
        for name in names:
            HANDLERS[f"aten.{name}"] = handler
        return handler

    return enter


def _made_sparse(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> XlaTensor:
    return sparse.MAKERS[op.name.removeprefix("aten.")](*args, **kwargs)


handles(*sparse.MAKERS)(_made_sparse)


@handles("_embedding_bag_backward.default")
def bag_backward(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> XlaTensor:
    gradient, indices, offsets, bag_of, bag_size, _, rows, by_frequency, mode, is_sparse = args[:10]
    if not is_sparse:
        return op.general(op, args, kwargs)  # type: ignore[misc]
    return torch.ops.aten._embedding_bag_sparse_backward(
        gradient, indices, offsets, bag_of, bag_size, rows, by_frequency, mode, *args[10:], **kwargs
    )


def host_value(tensor: XlaTensor) -> torch.Tensor:
    """A CPU copy of a device tensor; cuts where the value is pending."""
    cell = tensor.cell
    return transfer.to_host(cuts.buffer_of(cell), cell.kind.dtype)


@handles("_local_scalar_dense.default", "item.default")
def item(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    return host_value(args[0]).item()


@handles("equal.default")
def equal(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    one, other = args
    if one.shape != other.shape:
        return False
    return bool(torch.eq(one, other).all().item())


@handles("allclose.default")
def allclose(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    return bool(torch.isclose(*args, **kwargs).all().item())


@handles("detach.default", "alias.default", "lift_fresh.default", "lift.default")
def share(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> XlaTensor:
    return wrap(args[0].cell)


@handles("detach_.default")
def detach_(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> XlaTensor:
    return args[0]


@handles("_to_copy.default")
def to_copy(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    source = args[0]
    target = kwargs.get("device")
    named = {n: v for n, v in kwargs.items() if n in ("dtype", "memory_format") and v is not None}
    if target is not None and target.type not in ("xla", "lazy"):
        host = host_value(source) if source.__class__ is XlaTensor else source
        return host.to(device=target, **named)
    if source.__class__ is not XlaTensor:
        bring = sparse.from_cpu if source.layout is torch.sparse_coo else transfer.to_device
        return bring(source.to(**named), target)
    index = source.cell.trace.device_index
    if target is not None and device.index_of(target) != index:
        source = to_other_device(source, device.index_of(target))
    assert op.general is not None
    return op.general(op, (source,), named)


def to_other_device(source: XlaTensor, index: int) -> XlaTensor:
    """A copy on another device of this process."""
    return transfer.to_device(host_value(source), index)


@handles("copy_.default")
def copy_(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    target, source = args[0], args[1]
    if target.__class__ is not XlaTensor:
        return target.copy_(host_value(source))
    writes.check_targets(op, [target])
    cell = target.cell
    if source.__class__ is not XlaTensor:
        source = transfer.to_device(source.to(cell.kind.dtype), cell.trace.device_index)
    elif source.cell.trace is not cell.trace:
        source = to_other_device(source, cell.trace.device_index)
    if source.cell.kind.shape != cell.kind.shape:
        source = source.expand(cell.kind.shape)
    views.write(cell, writes.slot_as(source.cell, cell.kind.dtype))
    return target


@handles("split.Tensor", "split_with_sizes.default")
def split(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> list[XlaTensor]:
    x = args[0]
    parts = op.func(x.cell.kind.meta, *args[1:], **kwargs)
    dim = args[2] if len(args) > 2 else kwargs.get("dim", 0)
    if x.dim() == 0:
        return [wrap(x.cell)]
    return views.split_views(x, [part.shape[dim] for part in parts], dim, _SLICE)


@handles("unbind.int")
def unbind(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> list[XlaTensor]:
    x = args[0]
    dim = args[1] if len(args) > 1 else kwargs.get("dim", 0)
    if not -x.dim() <= dim < x.dim():
        return op.func(x.cell.kind.meta, dim)  # torch's own error
    return [views.make_view(_SELECT, (x, dim, i)) for i in range(x.shape[dim])]


@handles("as_strided.default")
def as_strided(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> XlaTensor:
    x, size, stride = args[:3]
    offset = args[3] if len(args) > 3 else kwargs.get("storage_offset")
    return wrap(views.make_as_strided(x.cell, size, stride, offset))


@handles("polygamma_.default")
def polygamma_(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Not derived: the functional form takes its arguments in another order."""
    target, n = (*args, *kwargs.values())
    writes.check_targets(op, [target])
    result = torch.ops.aten.polygamma.default(n, target)
    return writes.finish(op, [result.cell], [target], is_out=False)


_REVIEWED = {
    "transpose_.default": "transpose.int",
    "t_.default": "t.default",
    "squeeze_.default": "squeeze.default",
    "squeeze_.dim": "squeeze.dim",
    "squeeze_.dims": "squeeze.dims",
    "unsqueeze_.default": "unsqueeze.default",
    "swapaxes_.default": "transpose.int",
    "swapdims_.default": "transpose.int",
}


@handles(*_REVIEWED)
def review_(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> XlaTensor:
    """In-place view operators: the tensor becomes a view of what it was."""
    target = args[0]
    step = views.op_of("aten." + _REVIEWED[op.name.removeprefix("aten.")])
    writes.move_cell(target, views.make_view(step, args, kwargs).cell)
    return target


@handles("as_strided_.default")
def as_strided_(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> XlaTensor:
    writes.move_cell(args[0], as_strided(op, args, kwargs).cell)
    return args[0]


@handles("resize_.default")
def resize_(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> XlaTensor:
    """Keep the first elements in memory order; what is new is zero."""
    target, size = args[0], tuple(args[1])
    old = target.cell
    numel = 1
    for n in size:
        numel *= n
    if size == old.kind.shape:
        return target
    if numel <= old.kind.numel and old.kind.offset == 0:
        view = views.make_as_strided(old, size, contiguous_strides(size), 0)
        writes.move_cell(target, view)
        return target
    flat = wrap(old).reshape(-1)
    grown = torch.cat([flat, flat.new_zeros(numel - flat.numel())]).reshape(size)
    writes.move_cell(target, grown.cell)  # type: ignore[attr-defined]
    return target


@handles("resize_as_.default")
def resize_as_(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> XlaTensor:
    return resize_(op, (args[0], args[1].shape), {})


@handles("_unsafe_view.default")
def unsafe_view(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> XlaTensor:
    """torch hides that it is a view: kron writes its out= through one."""
    return views.make_view(_VIEW, args, kwargs)


@handles("set_.source_Tensor")
def set_tensor(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> XlaTensor:
    writes.move_cell(args[0], args[1].cell)
    return args[0]


@handles("set_.source_Tensor_storage_offset")
def set_strided(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> XlaTensor:
    target, source, offset, size = args[:4]
    stride = args[4] if len(args) > 4 else contiguous_strides(tuple(size))
    writes.move_cell(target, views.make_as_strided(source.cell, size, stride, offset))
    return target


@handles("set_.default")
def set_empty(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> XlaTensor:
    target = args[0]
    empty = torch.empty(0, dtype=target.dtype)
    writes.move_cell(target, transfer.cell_of(empty, target.cell.trace))
    return target


@handles("native_batch_norm.default")
def native_batch_norm(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """The schema hides that the running statistics are written; the `legit` overload says it."""
    x, weight, bias, mean, var, training, momentum, eps = args
    if mean is None or var is None:
        return _NATIVE.no_stats(x, weight, bias, training, momentum, eps)
    return _NATIVE.default(x, weight, bias, mean, var, training, momentum, eps)


@handles("_fused_sdp_choice.default")
def sdp_choice(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> int:
    return 0


@handles("is_pinned.default")
def is_pinned(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    return False


@handles("is_same_size.default")
def is_same_size(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    return args[0].shape == args[1].shape


@handles("record_stream.default", "_assert_async.default", "_assert_async.msg")
def nothing(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    return None


@handles("_linalg_check_errors.default")
def linalg_check_errors(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """Raise torch's error for a matrix that cannot be factorized; reads `info`, as on cuda."""
    info = args[0]
    if not info.cell.trace.is_paper:
        op.func(host_value(info), *args[1:], **kwargs)


@handles(
    "_foreach_addcmul.Tensor",
    "_foreach_addcmul_.Tensor",
    "_foreach_addcdiv.Tensor",
    "_foreach_addcdiv_.Tensor",
)
def foreach_with_scalars(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Here the scalars are one CPU tensor, which torch reads as well."""
    *lists, scalars = (*args, *kwargs.values())
    packet = getattr(torch.ops.aten, op.func._schema.name.removeprefix("aten::"))
    return packet.ScalarList(*lists, scalars.tolist())


@handles("is_coalesced.default")
def is_coalesced(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    return False
