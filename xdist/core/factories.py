"""Tensors from nothing: the kernels torch calls for `device="xla"` when no operand is ours.

torch's other factories are made of these and an in-place operator.
"""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import torch

from torch_xdist.core import device
from torch_xdist.core.bind import own_plan
from torch_xdist.core.plan import Op, Plan
from torch_xdist.core.special import HANDLERS
from torch_xdist.core.tensor import XlaTensor, wrap_roomy
from torch_xdist.core.trace import Kind, contiguous_strides, dense_kind, kind_of, kind_of_meta
from torch_xdist.dtypes import to_jax
from torch_xdist.ops.table import LOWERINGS

COPY = Op(torch.ops.aten.copy_.default)
_EMPTIES: dict[Kind, Plan] = {}
_INDEXED: dict[tuple[Any, ...], Plan] = {}
_libraries: list[torch.library.Library] = []


def fresh(kind: Kind, where: Any = None) -> XlaTensor:
    """A tensor of zeros. torch leaves the values of `empty` open; here they are zero."""
    plan = _EMPTIES.get(kind)
    if plan is None:
        to_jax(kind.dtype)  # an unsupported dtype is refused here, by name
        plan = own_plan("empty", lambda: jnp.zeros(kind.shape, to_jax(kind.dtype)), [], [kind])
        _EMPTIES[kind] = plan
    return _append(plan, kind, where)


def _append(plan: Plan, kind: Kind, where: Any) -> XlaTensor:
    trace = device.trace_of(device.index_of(_index(where)))
    trace.rows.append((plan,))
    return wrap_roomy(trace.new_cell(kind))


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
    if memory_format in (None, torch.contiguous_format, torch.preserve_format):
        return fresh(dense_kind(tuple(size), dtype), device)
    meta = torch.empty(size, dtype=dtype, device="meta", memory_format=memory_format)
    return fresh(kind_of_meta(meta), device)


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
    return fresh(kind_of(shape, dtype, strides), device)


def zeros(
    size: Sequence[int],
    *,
    dtype: torch.dtype | None = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: bool | None = None,
) -> XlaTensor:
    """Autograd's zero gradients; torch's own saves their memory, XLA folds them."""
    return fresh(dense_kind(tuple(size), dtype or torch.get_default_dtype()), device)


def copy_from(self: Any, dst: Any, non_blocking: bool = False) -> Any:
    """`dst.copy_(self)` as torch's C++ asks for it where Python is out of the way."""
    return HANDLERS["aten.copy_.default"](COPY, (dst, self), {})


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
        key = (name, row, col, offset, dtype)
        plan = _INDEXED.get(key)
        if plan is None:
            packet = getattr(torch.ops.aten, name).default
            meta = packet(row, col, offset, dtype=dtype or torch.int64, device="meta")
            kind = kind_of_meta(meta)
            lowering = LOWERINGS[f"aten.{name}.default"]
            plan = own_plan(name, lambda: lowering(row, col, offset, dtype=kind.dtype), [], [kind])
            _INDEXED[key] = plan
        return _append(plan, plan.kinds[0], device)  # type: ignore[arg-type]

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
