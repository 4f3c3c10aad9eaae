"""Parameters of torch's lazy modules on the device, before their first input gives them sizes.

Such a parameter holds no data, so it stays a CPU tensor that knows the device it belongs to; when
it gets its size, a device tensor takes its place in the same Python object.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.parameter import (  # type: ignore[attr-defined]
    Parameter,
    UninitializedBuffer,
    UninitializedParameter,
    UninitializedTensorMixin,
)

from torch_xdist.releases import patches

_MARK = "_xla_device"
_get_device = torch.Tensor.device.__get__  # type: ignore[attr-defined]
_get_is_xla = torch.Tensor.is_xla.__get__  # type: ignore[attr-defined]
_set_data = torch.Tensor.data.__set__  # type: ignore[attr-defined]
_function = UninitializedTensorMixin.__torch_function__.__func__  # type: ignore[attr-defined]
_materialize = UninitializedTensorMixin.materialize


def _marked(tensor: Any, device: torch.device | None) -> Any:
    """The tensor, which now belongs to that device; None: to the one it is on."""
    tensor.__dict__[_MARK] = device
    return tensor


def _mark_of(tensor: Any) -> torch.device | None:
    return getattr(tensor, "__dict__", {}).get(_MARK)


def _is_xla(device: torch.device | None) -> bool:
    return device is not None and device.type == "xla"


def torch_function(
    cls: Any, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
) -> Any:
    """What `.to`, `.device`, `.is_xla` and `.data =` of such a parameter do."""
    mark = _mark_of(args[0]) if args else None
    if func is torch.Tensor.to:
        return _moved(cls, types, args, kwargs or {})
    if mark is not None and func is torch.Tensor.cpu:
        return _moved(cls, types, (args[0], "cpu"), {})
    if mark is not None and func == _get_is_xla:
        return True
    if mark is not None and func == _get_device:
        return mark
    result = _function(cls, func, types, args, kwargs)
    if func == _set_data:
        _marked(args[0], _mark_of(args[1]))
    elif mark is not None and isinstance(result, torch.Tensor):
        _marked(result, mark)  # float(), double() and such
    return result


def _moved(cls: Any, types: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """`.to(...)`: a copy that belongs where it was asked to, or where it belonged."""
    rest = {name: value for name, value in kwargs.items() if name != "copy"}
    device, dtype, _, _ = torch._C._nn._parse_to(*args[1:], **rest)
    mark = _mark_of(args[0])
    if mark is None and not _is_xla(device):
        return _function(cls, torch.Tensor.to, types, args, kwargs)
    here = "cpu" if device is None or _is_xla(device) else device
    named = {"copy": True} | ({} if dtype is None else {"dtype": dtype})
    moved = _function(cls, torch.Tensor.to, types, (args[0], here), named)
    if device is not None:
        mark = torch.device("xla", device.index or 0) if _is_xla(device) else None
    return _marked(moved, mark)


def materialize(self: Any, shape: Any, device: Any = None, dtype: Any = None) -> None:
    """torch's `materialize`; on the device a new tensor takes the place of the placeholder."""
    there = _mark_of(self) if device is None else torch.device(device)
    if not _is_xla(there):
        _materialize(self, shape, device, dtype)
        return
    value: Any = torch.empty(shape, device=there, dtype=dtype or self.dtype)
    if isinstance(self, Parameter):
        value = Parameter(value, self.requires_grad)
    torch.utils.swap_tensors(self, value)


def _new(made: Callable[..., Any], *, by_default: bool) -> Callable[..., Any]:
    """The constructor; what belongs to an xla device is made on the CPU and marked.

    `by_default`: whether torch's asks for gradients.
    """

    def __new__(
        cls: Any,
        requires_grad: bool = by_default,
        device: Any = None,
        dtype: Any = None,
        **rest: Any,
    ) -> Any:
        there = torch.get_default_device() if device is None else torch.device(device)
        if not _is_xla(there):
            return made(cls, requires_grad, device, dtype, **rest)
        device = torch.device("xla", there.index or 0)
        return _marked(made(cls, requires_grad, torch.device("cpu"), dtype, **rest), device)

    return __new__


def _deepcopy(self: Any, memo: dict[int, Any]) -> Any:
    if id(self) not in memo:
        memo[id(self)] = type(self)(self.requires_grad, self.device, self.dtype)
    return memo[id(self)]


def register() -> None:
    """Enter the methods into torch's classes; called once."""
    new_parameter = _new(UninitializedParameter.__new__, by_default=True)
    new_buffer = _new(UninitializedBuffer.__new__, by_default=False)
    for name, method in (
        ("UninitializedTensorMixin.__torch_function__", classmethod(torch_function)),
        ("UninitializedTensorMixin.materialize", materialize),
        ("UninitializedParameter.__new__", staticmethod(new_parameter)),
        ("UninitializedParameter.__deepcopy__", _deepcopy),
        ("UninitializedBuffer.__new__", staticmethod(new_buffer)),
    ):
        patches.replace(f"torch.nn.parameter.{name}", method)
