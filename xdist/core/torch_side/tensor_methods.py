"""Methods of device tensors that torch's C++ cannot answer for a wrapper: print, storage, data."""

import functools
import threading
from collections import OrderedDict
from typing import Any

import torch

from torch_xdist.core.alias import writes
from torch_xdist.core.alias.storage import TypedDeviceStorage, address_of, storage_of
from torch_xdist.core.devices.tensor import XlaTensor, attributes_of, wrap
from torch_xdist.core.devices.transfer import host_value
from torch_xdist.core.record.handlers_copy import is_elsewhere
from torch_xdist.core.record.handlers_storage import set_method
from torch_xdist.errors import DeviceError
from torch_xdist.releases import patches

_TYPE_NAMES = {
    torch.float32: "FloatTensor", torch.float64: "DoubleTensor", torch.float16: "HalfTensor",
    torch.bfloat16: "BFloat16Tensor", torch.int64: "LongTensor", torch.int32: "IntTensor",
    torch.int16: "ShortTensor", torch.int8: "CharTensor", torch.uint8: "ByteTensor",
    torch.bool: "BoolTensor", torch.complex64: "ComplexFloatTensor",
    torch.complex128: "ComplexDoubleTensor",
}  # fmt: skip


def _repr(self: XlaTensor, *, tensor_contents: Any = None) -> str:
    host = host_value(self).detach()
    text = torch._tensor_str._str(host, tensor_contents=tensor_contents)
    notes = [f"device='{self.device}'"]
    if self.grad_fn is not None:
        notes.append(f"grad_fn=<{type(self.grad_fn).__name__}>")
    elif self.requires_grad:
        notes.append("requires_grad=True")
    if text.endswith(")"):
        text = f"{text[:-1]}, {', '.join(notes)})"
    if isinstance(self, torch.nn.Parameter):
        return f"Parameter containing:\n{text}"
    return text


def _format(self: XlaTensor, spec: str) -> str:
    """In an f-string a tensor of no dims is its number; torch says so of its own class alone."""
    is_parameter = isinstance(self, torch.nn.Parameter)
    if self.dim() == 0 and not is_parameter:
        return self.detach().item().__format__(spec)
    if spec:
        kind = "Parameter" if is_parameter else "Tensor"
        raise TypeError(f"unsupported format string passed to {kind}.__format__")
    return str(self)


def _type(self: XlaTensor, dtype: Any = None, non_blocking: bool = False, **_: Any) -> Any:
    if dtype is None:
        return "torch.xla." + _TYPE_NAMES.get(self.dtype, f"{self.dtype}Tensor")
    if isinstance(dtype, torch.dtype):
        return self.to(dtype)
    name = dtype if isinstance(dtype, str) else f"{dtype.__module__}.{dtype.__name__}"
    wanted = {f"torch.xla.{n}": d for d, n in _TYPE_NAMES.items()}
    if name in wanted:
        return self.to(wanted[name])
    return self.cpu().type(dtype)


def _numpy(self: XlaTensor, *, force: bool = False) -> Any:
    if force:
        return host_value(self).numpy()
    raise TypeError(
        f"can't convert {self.device} device type tensor to numpy. Use Tensor.cpu() to copy the "
        "tensor to host memory first."
    )


def _array(self: XlaTensor, dtype: Any = None) -> Any:
    return _numpy(self)


def _set_data(self: XlaTensor, value: torch.Tensor) -> None:
    if value.__class__ is not XlaTensor:
        raise DeviceError(
            f"{self.device}: cannot set .data of a device tensor to a {value.type()}; move the "
            "value with .to('xla') first"
        )
    writes.set_value(self, value.value)


def _get_data(self: XlaTensor) -> XlaTensor:
    return wrap(self.value)


_usual_to = torch.Tensor.to
_OF_TO = {"device", "dtype", "non_blocking", "memory_format"}


def _to(self: XlaTensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """`to` of the device it is on is the tensor itself, as elsewhere.

    torch's C++ looks at the device underneath, and would copy.
    """
    first = args[0] if args else None
    # The second flag among positional arguments is `copy`, which the parser does not take.
    has_copy = [argument.__class__ for argument in args[-2:]] == [bool, bool]
    if first.__class__ is torch.dtype or not kwargs.keys() <= _OF_TO or (has_copy and args[-1]):
        return _usual_to(self, *args, **kwargs)
    parsed = args[:-1] if has_copy else args
    target, dtype, non_blocking, memory_format = torch._C._nn._parse_to(*parsed, **kwargs)
    if target is None or is_elsewhere(self, target):
        return _usual_to(self, *args, **kwargs)
    if memory_format is None:
        return _usual_to(self, dtype or self.dtype, non_blocking)
    return _usual_to(self, dtype or self.dtype, non_blocking, memory_format=memory_format)


_usual_setitem = torch.Tensor.__setitem__


def _setitem(self: XlaTensor, index: Any, value: Any) -> None:
    """`x[mask] = parameter` with a gradient is a `where`.

    torch's own gradient of it reads the elements that the mask selects: another shape for each
    mask, so another program.
    """
    if index.__class__ is XlaTensor and index.dtype is torch.bool and _is_learned(value):
        mask, rest = index, self.dim() - index.dim()
        fills = value.dim() <= rest and mask.dim() > 0 and mask.shape == self.shape[: mask.dim()]
        if fills and value.dtype == self.dtype and _broadcasts(value, self.shape[mask.dim() :]):
            self.copy_(torch.where(mask[(..., *(None,) * rest)], value, self))
            return
    _usual_setitem(self, index, value)


def _is_learned(value: Any) -> bool:
    return isinstance(value, XlaTensor) and value.requires_grad and torch.is_grad_enabled()


def _broadcasts(value: torch.Tensor, shape: torch.Size) -> bool:
    """Whether a tensor of no more dims fills this shape."""
    last = shape[len(shape) - value.dim() :]
    return all(size in (1, whole) for size, whole in zip(value.shape, last, strict=True))


_saving = threading.local()


def _reduce(self: XlaTensor, protocol: Any) -> Any:
    """In a file of `torch.save` a CPU tensor, which loads where we are not; else the device's."""
    host = host_value(self)
    if not getattr(_saving, "depth", 0):
        args = (host, self.dtype, str(self.device), self.requires_grad)
        return torch._utils._rebuild_device_tensor_from_cpu_tensor, args
    if isinstance(self, torch.nn.Parameter):
        return torch._utils._rebuild_parameter, (host, self.requires_grad, OrderedDict())
    return host.requires_grad_(self.requires_grad).__reduce_ex__(protocol)


def _marking(save: Any) -> Any:
    """A writer of torch's that says to `_reduce` that it is one."""

    @functools.wraps(save)
    def marked(*args: Any, **kwargs: Any) -> Any:
        _saving.depth = getattr(_saving, "depth", 0) + 1
        try:
            return save(*args, **kwargs)
        finally:
            _saving.depth -= 1

    return marked


def _copy(self: XlaTensor) -> torch.Tensor:
    """Another tensor of the same memory, as `copy.copy` makes one of any of torch's."""
    made = self.detach()
    if isinstance(self, torch.nn.Parameter):
        made = torch.nn.Parameter(made, self.requires_grad)
    made.requires_grad_(self.requires_grad)
    made.__dict__.update(attributes_of(self))
    return made


def _deepcopy(self: XlaTensor, memo: dict[int, Any]) -> XlaTensor:
    known = memo.get(id(self))
    if known is not None:
        return known
    if not self.is_leaf:
        raise RuntimeError(
            "Only Tensors created explicitly by the user (graph leaves) support the deepcopy "
            "protocol at the moment.  If you were attempting to deepcopy a module, this may be "
            "because of a torch.nn.utils.weight_norm usage"
        )
    with torch.no_grad():
        copy = self.clone()
    copy.__dict__.update(attributes_of(self))
    copy.requires_grad_(self.requires_grad)
    if self.grad is not None:
        copy.grad = _deepcopy(self.grad, memo)  # type: ignore[arg-type]
    memo[id(self)] = copy
    return copy  # type: ignore[return-value]


def _as_tangent(self: XlaTensor, meta: Any, type_: type | None = None) -> XlaTensor | None:
    """AOT autograd captured its backward pass with plain tensors in the place of ours."""
    return self if type_ is torch.Tensor else None


def register() -> None:
    """Enter the methods into the class."""
    methods = {
        "__repr__": _repr,
        "__format__": _format,
        "to": _to,
        "type": _type,
        "set_": set_method,
        "numpy": _numpy,
        "__array__": _array,
        "__setitem__": _setitem,
        "__reduce_ex__": _reduce,
        "__copy__": _copy,
        "__deepcopy__": _deepcopy,
        "__coerce_same_metadata_as_tangent__": _as_tangent,
        "tolist": lambda self: host_value(self).tolist(),
        "untyped_storage": lambda self: storage_of(self.value),
        "storage": lambda self: TypedDeviceStorage(self),
        "_typed_storage": lambda self: TypedDeviceStorage(self),
        "data_ptr": lambda self: address_of(self.value),
        "data": property(_get_data, _set_data),
        "is_shared": lambda self: False,
        "pin_memory": lambda self, device=None: self,
        "xla": lambda self, *_, **__: self,
    }
    for name, method in methods.items():
        if not isinstance(method, property):
            # By its name dynamo knows a method of tensors, which it captures, from other functions.
            method.__name__ = name  # type: ignore[attr-defined]
        setattr(XlaTensor, name, method)
    for target in ("torch.serialization._save", "torch.serialization._legacy_save"):
        patches.wrap(target, _marking)
    patches.replace("torch.Tensor.xla", _xla)


def _xla(self: torch.Tensor, index: int | None = None) -> torch.Tensor:
    return self.to("xla" if index is None else torch.device("xla", index))
