"""Tensors from nothing: the kernels torch calls for `device="xla"` when no operand is ours.

torch's other factories are made of these and an in-place operator.
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import torch

from torch_xdist.core.composites.kept_on_host import keep
from torch_xdist.core.devices import device
from torch_xdist.core.devices.tensor import XlaTensor, wrap_roomy
from torch_xdist.core.record.handlers_copy import copy_, item
from torch_xdist.core.record.jax_ops import after_row
from torch_xdist.core.trace.operators import op_of
from torch_xdist.core.trace.plans import PLANS, Plan, jax_plan
from torch_xdist.core.trace.tensor_types import (
    TensorType,
    contiguous_strides,
    dense_type,
    tensor_type,
    type_of_meta,
)
from torch_xdist.dtypes import to_jax
from torch_xdist.ops.table import LOWERINGS

_COPY = op_of("aten.copy_.default")
_ITEM = op_of("aten._local_scalar_dense.default")
_libraries: list[torch.library.Library] = []


def fresh(type_: TensorType, where: Any = None) -> XlaTensor:
    """A tensor of zeros. torch leaves the values of `empty` open; here they are zero."""
    if type_.dtype in device.NOT_EVERYWHERE and not device.holds(type_.dtype):
        return keep(torch.zeros(type_.shape, dtype=type_.dtype), device.index_of(_index(where)))

    def make() -> Plan:
        dtype = to_jax(type_.dtype)  # an unsupported dtype is refused here, by name
        return jax_plan("empty", lambda: jnp.zeros(type_.shape, dtype), [], [type_])

    return _record(PLANS.find(("empty", type_), make), where)


def _record(plan: Plan, where: Any) -> XlaTensor:
    trace = device.trace_of(device.index_of(_index(where)))
    (value,) = trace.record(plan, [])
    result = wrap_roomy(value)  # type: ignore[arg-type]
    after_row()
    return result


def _index(where: Any) -> int | None:
    return None if where is None else torch.device(where).index


def empty(
    size: Sequence[int],
    *,
    dtype: torch.dtype | None = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: bool | None = None,
    memory_format: torch.memory_format | None = None,
) -> XlaTensor:
    dtype = dtype or torch.get_default_dtype()
    if min(size, default=0) < 0:
        # Raises torch's error, before there is a row.
        torch.empty(size, device="meta")
    if memory_format in (None, torch.contiguous_format, torch.preserve_format):
        return fresh(dense_type(tuple(size), dtype), device)
    meta = torch.empty(size, dtype=dtype, device="meta", memory_format=memory_format)
    return fresh(type_of_meta(meta), device)


def empty_strided(
    size: Sequence[int],
    stride: Sequence[int],
    *,
    dtype: torch.dtype | None = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: bool | None = None,
) -> XlaTensor:
    dtype = dtype or torch.get_default_dtype()
    shape = tuple(size)
    strides = contiguous_strides(shape) if 0 in shape else tuple(stride)
    return fresh(tensor_type(shape, dtype, strides), device)


def zeros(
    size: Sequence[int],
    *,
    dtype: torch.dtype | None = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: bool | None = None,
) -> XlaTensor:
    """Autograd's zero gradients; torch's own saves their memory, XLA folds them."""
    return fresh(dense_type(tuple(size), dtype or torch.get_default_dtype()), device)


def copy_from(self: Any, dst: Any, non_blocking: bool = False) -> Any:
    """`dst.copy_(self)` as torch's C++ asks for it where Python is out of the way."""
    if dst.__class__ is not XlaTensor and isinstance(dst, XlaTensor):
        # A kind of its own: sparse, or kept on the host.
        return dst.__torch_dispatch__(_COPY.func, (), (dst, self))
    return copy_(_COPY, (dst, self), {})


def number_of(self: Any) -> Any:
    """A device tensor's number, as C++ reads it where Python is out of the way: in a list that
    `torch.tensor` makes a tensor of."""
    if self.__class__ is not XlaTensor:
        return self.__torch_dispatch__(_ITEM.func, (), (self,))
    return item(_ITEM, (self,), {})


def _triangle(name: str) -> Any:
    def kernel(
        row: int,
        col: int,
        offset: int = 0,
        *,
        dtype: torch.dtype | None = None,
        layout: Any = None,
        device: Any = None,
        pin_memory: bool | None = None,
    ) -> XlaTensor:
        wanted = dtype or torch.int64

        def make() -> Plan:
            packet = getattr(torch.ops.aten, name).default
            type_ = type_of_meta(packet(row, col, offset, dtype=wanted, device="meta"))
            lowering = LOWERINGS[f"aten.{name}.default"]
            triangle = functools.partial(lowering, dtype=type_.dtype)
            return jax_plan(name, triangle, [], [type_], row, col, offset)

        return _record(PLANS.find((name, row, col, offset, wanted), make), device)

    return kernel


def kaiser_window(
    window_length: int,
    periodic: bool = True,
    beta: float = 12.0,
    *,
    dtype: torch.dtype | None = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: bool | None = None,
) -> torch.Tensor:
    """torch's own asks for a kernel by the device underneath, which has none."""
    dtype = dtype or torch.get_default_dtype()
    if not window_length:
        return torch.empty(0, dtype=dtype, device=device)
    last = window_length - (0 if periodic else 1)
    precise = torch.promote_types(dtype, torch.float32)
    # torch counts in the window's own dtype, so half precision rounds the places too.
    places = torch.arange(window_length, dtype=dtype, device=device).to(precise)
    # From -1 to 1; a window of one element is its middle.
    places = places * (2 / last) - 1 if window_length > 1 else places
    heights = torch.special.i0(beta * (1 - places.square()).clamp(min=0).sqrt())
    peak = torch.special.i0(torch.full((), beta, dtype=precise, device=device))
    return (heights / peak).to(dtype)


def register() -> None:
    """Enter the kernels under both keys a device tensor may be created by."""
    kernels = {
        "empty.memory_format": empty,
        "empty_strided": empty_strided,
        "_efficientzerotensor": zeros,
        "_copy_from": copy_from,
        "_local_scalar_dense": number_of,
        "tril_indices": _triangle("tril_indices"),
        "triu_indices": _triangle("triu_indices"),
        "kaiser_window": kaiser_window,
        "kaiser_window.periodic": kaiser_window,
        "kaiser_window.beta": kaiser_window,
    }
    for key in ("XLA", "Lazy"):
        library = torch.library.Library("aten", "IMPL", key)
        for name, kernel in kernels.items():
            library.impl(name, kernel)
        _libraries.append(library)
