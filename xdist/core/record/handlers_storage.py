"""Operators that give a tensor another part, or another view, of a storage."""

from collections.abc import Sequence
from typing import Any

import torch

from torch_xdist.core.alias import views, writes
from torch_xdist.core.alias.storage import (
    DeviceStorage,
    TypedDeviceStorage,
    flat_view,
    storage_of,
)
from torch_xdist.core.devices import transfer
from torch_xdist.core.devices.tensor import XlaTensor, wrap
from torch_xdist.core.trace.operators import Op, op_of
from torch_xdist.core.trace.tensor_types import contiguous_strides, extent
from torch_xdist.core.trace.values import root_of

_SLICE = op_of("aten.slice.Tensor")
_SELECT = op_of("aten.select.int")
_VIEW = op_of("aten.view.default")


def split(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> list[XlaTensor]:
    x = args[0]
    parts = op.func(x.value.type.meta, *args[1:], **kwargs)
    dim = args[2] if len(args) > 2 else kwargs.get("dim", 0)
    if x.dim() == 0:
        return [wrap(x.value)]
    return views.split_views(x, [part.shape[dim] for part in parts], dim, _SLICE)


def unbind(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> list[XlaTensor]:
    x = args[0]
    dim = args[1] if len(args) > 1 else kwargs.get("dim", 0)
    if not -x.dim() <= dim < x.dim():
        return op.func(x.value.type.meta, dim)  # torch's own error
    return [views.make_view(_SELECT, (x, dim, i)) for i in range(x.shape[dim])]


def as_strided(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> XlaTensor:
    x, size, stride = args[:3]
    offset = args[3] if len(args) > 3 else kwargs.get("storage_offset")
    return wrap(views.make_as_strided(x.value, size, stride, offset))


def as_strided_copy(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> XlaTensor:
    return as_strided(op, args, kwargs).clone(memory_format=torch.contiguous_format)  # type: ignore[return-value]


# In-place view operators: the tensor becomes a view of what it was.
_VIEWED_ANEW = {
    "transpose_.default": "transpose.int",
    "t_.default": "t.default",
    "squeeze_.default": "squeeze.default",
    "squeeze_.dim": "squeeze.dim",
    "squeeze_.dims": "squeeze.dims",
    "unsqueeze_.default": "unsqueeze.default",
    "swapaxes_.default": "transpose.int",
    "swapdims_.default": "transpose.int",
}


def view_anew_(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> XlaTensor:
    target = args[0]
    step = op_of("aten." + _VIEWED_ANEW[op.name.removeprefix("aten.")])
    writes.set_value(target, views.make_view(step, args, kwargs).value)
    return target


def as_strided_(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> XlaTensor:
    writes.set_value(args[0], as_strided(op, args, kwargs).value)
    return args[0]


def resize_(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> XlaTensor:
    """Another size in the same storage; where that ends, all moves to a larger one, of zeros."""
    target, size = args[0], tuple(args[1])
    order = kwargs.get("memory_format")
    old = target.value
    numel = torch.Size(size).numel()
    if size == old.type.shape and order is None:
        return target
    offset, root = old.type.offset, root_of(old).type
    room = extent(root) * root.dtype.itemsize // old.type.dtype.itemsize - offset
    if numel > room:
        flat = wrap(views.make_as_strided(old, (room,), (1,), offset))
        old, offset = torch.cat([flat, flat.new_zeros(numel - room)]).value, 0  # type: ignore[attr-defined]
    strides = contiguous_strides(size)
    if order is not None:
        strides = torch.empty(size, device="meta", memory_format=order).stride()
    writes.set_value(target, views.make_as_strided(old, size, strides, offset))
    return target


def resize_as_(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> XlaTensor:
    template, order = args[1], kwargs.get("memory_format")
    if order is torch.preserve_format:
        orders = (torch.channels_last, torch.channels_last_3d)
        order = next((o for o in orders if template.is_contiguous(memory_format=o)), None)
        order = order or torch.contiguous_format
    return resize_(op, (args[0], template.shape), {"memory_format": order})


def unsafe_view(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> XlaTensor:
    """torch hides that it is a view: kron writes its out= through one."""
    return views.make_view(_VIEW, args, kwargs)


def set_tensor(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> XlaTensor:
    writes.set_value(args[0], args[1].value)
    return args[0]


def set_strided(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> torch.Tensor:
    return set_method(*args)


def set_method(
    self: XlaTensor,
    source: Any = None,
    storage_offset: int = 0,
    size: Sequence[int] | None = None,
    stride: Sequence[int] | None = None,
) -> torch.Tensor:
    """`Tensor.set_`: torch's own reaches into C++ storages, and takes none of Python's."""
    if isinstance(source, TypedDeviceStorage):
        source = source._untyped_storage
    if not isinstance(source, DeviceStorage):
        if size is None or not isinstance(source, XlaTensor):
            return torch.Tensor.set_(self, *(() if source is None else (source,)))
        source = storage_of(source.value)
    flat = wrap(flat_view(source)).view(self.dtype)
    size = (flat.numel(),) if size is None else tuple(size)
    strides = contiguous_strides(size) if stride is None else tuple(stride)
    value = views.make_as_strided(flat.value, size, strides, storage_offset)  # type: ignore[attr-defined]
    writes.set_value(self, value)
    return self


def set_empty(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> XlaTensor:
    target = args[0]
    empty = torch.empty(0, dtype=target.dtype)
    writes.set_value(target, transfer.value_of(empty, target.value.trace))
    return target


HANDLERS = {
    **dict.fromkeys((f"aten.{name}" for name in _VIEWED_ANEW), view_anew_),
    "aten._unsafe_view.default": unsafe_view,
    "aten.as_strided.default": as_strided,
    "aten.as_strided_.default": as_strided_,
    "aten.as_strided_copy.default": as_strided_copy,
    "aten.resize_.default": resize_,
    "aten.resize_as_.default": resize_as_,
    "aten.set_.default": set_empty,
    "aten.set_.source_Tensor": set_tensor,
    "aten.set_.source_Tensor_storage_offset": set_strided,
    "aten.split.Tensor": split,
    "aten.split_with_sizes.default": split,
    "aten.unbind.int": unbind,
}
