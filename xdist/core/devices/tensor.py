"""The tensor users hold: a wrapper subclass that says it lives on `xla:N`.

Underneath it is a storage-less tensor on torch's `lazy` device, for which torch core has a device
guard and runs autograd on the calling thread. Everything it knows is its `value`.
"""

from typing import Any

import torch

from torch_xdist.core.trace.values import Value

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
# The storage size of a tensor that may grow: more than any tensor will have.
_ROOM_BYTES = 1 << 60


class XlaTensor(torch.Tensor):
    """A tensor on an xla device. Made by `wrap`; every operator on it arrives in dispatch.py."""

    value: Value

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __torch_dispatch__(  # type: ignore[override]
        func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        raise NotImplementedError("xla tensor: torch_xdist.core.record.dispatch is not loaded")

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return self.value.trace.device.torch

    @property
    def is_xla(self) -> bool:  # type: ignore[override]
        return True


def wrap(value: Value) -> XlaTensor:
    """A new tensor that points at `value`."""
    type_ = value.type
    tensor = _make(
        XlaTensor,
        type_.shape,
        type_.wrap_stride,
        type_.offset or None,
        None,
        type_.dtype,
        _STRIDED,
        value.trace.device.lazy,
        False,
        False,
        None,
        False,
        False,
        AUTOCAST_KEYS,
    )
    tensor.value = value
    return tensor


class OtherClassError(Exception):
    """A tensor of a class of somebody else's stands among ours: that class is asked next."""


def of_other_class(tensor: torch.Tensor) -> bool:
    """Whether the operators on a tensor are the business of a class of somebody else's."""
    answers = type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__
    return answers and not isinstance(tensor, XlaTensor)


def attributes_of(tensor: torch.Tensor) -> dict[str, Any]:
    """What users hung on a tensor of any device: its attributes but what it points at."""
    return {name: held for name, held in tensor.__dict__.items() if name != "value"}


def wrap_roomy(value: Value) -> XlaTensor:
    """A tensor that out= and resize_ can make larger: torch checks layouts against its size."""
    type_ = value.type
    tensor = _make(
        XlaTensor,
        type_.shape,
        type_.wrap_stride,
        dtype=type_.dtype,
        device=value.trace.device.lazy,
        _extra_dispatch_keys=AUTOCAST_KEYS,
        storage_size=_ROOM_BYTES,
    )
    tensor.value = value
    return tensor
