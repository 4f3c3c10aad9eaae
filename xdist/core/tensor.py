"""The tensor users hold: a wrapper subclass that says it lives on `xla:N`.

Underneath it is a storage-less tensor on torch's `lazy` device, for which torch core has a device
guard and runs autograd on the calling thread. Everything it knows is its `cell`.
"""

from typing import Any

import torch

from torch_xdist.core.trace import Cell

_make = torch.Tensor._make_wrapper_subclass
_STRIDED = torch.strided


def _autocast_key() -> torch._C.DispatchKeySet:
    """The AutocastXLA key, which has no name in Python: found between two wrappers."""
    keys = torch._C._dispatch_keys
    of_xla = keys(_make(_Probe, (1,), device="xla:0"))  # type: ignore[arg-type]
    of_lazy = keys(_make(_Probe, (1,), device="lazy:0"))  # type: ignore[arg-type]
    return of_xla - of_lazy


class _Probe(torch.Tensor):
    @staticmethod
    def __torch_dispatch__(  # type: ignore[override]
        func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        raise NotImplementedError(f"probe tensor: {func} was called on it")


AUTOCAST_KEYS = _autocast_key()
# One device object of each kind per index; torch builds them from strings otherwise.
LAZY_DEVICES = [torch.device("lazy", i) for i in range(64)]
XLA_DEVICES = [torch.device("xla", i) for i in range(64)]
# The storage size of a tensor that may grow: more than any tensor will have.
_ROOM_BYTES = 1 << 60


class XlaTensor(torch.Tensor):
    """A tensor on an xla device. Made by `wrap`; every operator on it arrives in dispatch.py."""

    cell: Cell

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __torch_dispatch__(  # type: ignore[override]
        func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        raise NotImplementedError("xla tensor: torch_xdist.core.dispatch is not loaded")

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return XLA_DEVICES[self.cell.trace.device_index]

    @property
    def is_xla(self) -> bool:  # type: ignore[override]
        return True


def wrap(cell: Cell) -> XlaTensor:
    """A new tensor that points at `cell`."""
    kind = cell.kind
    tensor = _make(
        XlaTensor,
        kind.shape,
        kind.wrap_stride,
        kind.offset or None,
        None,
        kind.dtype,
        _STRIDED,
        LAZY_DEVICES[cell.trace.device_index],
        False,
        False,
        None,
        False,
        False,
        AUTOCAST_KEYS,
    )
    tensor.cell = cell
    return tensor


def wrap_roomy(cell: Cell) -> XlaTensor:
    """A tensor that out= and resize_ can make larger: torch checks layouts against its size."""
    kind = cell.kind
    tensor = _make(
        XlaTensor,
        kind.shape,
        kind.wrap_stride,
        dtype=kind.dtype,
        device=LAZY_DEVICES[cell.trace.device_index],
        _extra_dispatch_keys=AUTOCAST_KEYS,
        storage_size=_ROOM_BYTES,
    )
    tensor.cell = cell
    return tensor
