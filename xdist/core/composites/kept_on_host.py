"""Tensors that no program can hold, kept in host memory: CSR, CSC and the block layouts, complex32,
and what a platform's compiler refuses (complex128 on TPUs).

Each operator on one runs in eager torch on the CPU and is counted like any fallback. What it gives
goes to the device, unless no program can hold that either, or it is a view of what is kept.
"""

import time
from collections.abc import Sequence
from typing import Any

import torch

from torch_xdist.core.composites import sparse
from torch_xdist.core.composites.sparse import SparseXlaTensor
from torch_xdist.core.devices import device
from torch_xdist.core.devices.tensor import AUTOCAST_KEYS, XlaTensor
from torch_xdist.core.devices.transfer import host_value, to_device
from torch_xdist.core.record import fallback, handlers_copy
from torch_xdist.core.trace.operators import Op, op_of
from torch_xdist.core.trace.plans import flat
from torch_xdist.errors import NoLoweringError

_LAYOUTS = (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)


class KeptTensor(XlaTensor):
    """A tensor on an xla device whose values are in host memory. Made by `keep`."""

    kept: torch.Tensor  # on the CPU
    ordinal: int  # of the device

    @staticmethod
    def __torch_dispatch__(  # type: ignore[override]
        func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func is torch.ops.prim.layout.default:
            return args[0].kept.layout
        return _on_host(op_of(func), args, kwargs or {})

    @property
    def value(self) -> Any:  # type: ignore[override]
        raise NoLoweringError(
            f"no program can hold a tensor of {self.dtype} and layout {self.layout}, so it is kept"
            " on the host, and operators on it run there; it has no place in a program"
        )

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device("xla", self.ordinal)

    @property
    def data(self) -> "KeptTensor":  # type: ignore[override]
        return self.detach()  # type: ignore[return-value]

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def __deepcopy__(self, memo: dict[int, Any]) -> "KeptTensor":
        copy = keep(self.kept.clone(), self.ordinal).requires_grad_(self.requires_grad)
        return memo.setdefault(id(self), copy)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.detach().cpu().requires_grad_(self.requires_grad).__reduce_ex__(protocol)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"{repr(self.detach().cpu())[:-1]}, device='{self.device}')"


def keep(tensor: torch.Tensor, index: int) -> KeptTensor:
    """A tensor of the device of this index that is kept as this CPU tensor, which is not copied."""
    is_strided = tensor.layout is torch.strided
    made = torch.Tensor._make_wrapper_subclass(
        KeptTensor,
        tuple(tensor.shape),
        tensor.stride() if is_strided else None,
        dtype=tensor.dtype,
        layout=tensor.layout,
        device=device.device_at(index).lazy,
        dispatch_layout=not is_strided,
        _extra_dispatch_keys=AUTOCAST_KEYS,
    )
    made.kept, made.ordinal = tensor, index
    # torch looks at these here, and not again below: it would pass over them in the CPU's tensor.
    if tensor.is_conj():
        torch._C._set_conj(made, True)
    if tensor.is_neg():
        torch._C._set_neg(made, True)
    return made


def is_to_be_kept(layout: torch.layout, dtype: torch.dtype) -> bool:
    """Whether no program of this process' platform can hold such a tensor."""
    return layout in _LAYOUTS or not device.holds(dtype)


def _on_host(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Run a call on the CPU: one of its tensors is kept there, or its result will be."""
    started = time.perf_counter()
    tensors = [t for t in flat((args, tuple(kwargs.values()))) if isinstance(t, XlaTensor)]
    hosts = {id(tensor): _host_of(tensor) for tensor in tensors}
    if op.is_view or not any("Tensor" in str(of.type) for of in op.func._schema.returns):
        # What it tells, or another look at the same memory, costs nothing.
        viewed = fallback.called(op, args, kwargs, hosts)
        return _back(viewed, {}, tensors[0].device, is_view=True)
    where = fallback.allowed_line(op, "takes or makes a tensor that is kept on the host")
    written = fallback.written(op, args, kwargs)
    for tensor in written:
        if tensor.__class__ is XlaTensor:
            hosts[id(tensor)] = hosts[id(tensor)].clone()
    result = fallback.counted_call(op, args, kwargs, hosts)
    for tensor in written:
        if tensor.__class__ is XlaTensor:
            tensor.copy_(hosts[id(tensor)])
    fallback.tell(op.name, where, time.perf_counter() - started)
    target = kwargs.get("device") or tensors[0].device
    if not device.is_ours(target):
        return result
    originals = {id(hosts.get(id(tensor), tensor)): tensor for tensor in written}
    return _back(result, originals, target)


def _host_of(tensor: XlaTensor) -> torch.Tensor:
    if isinstance(tensor, KeptTensor):
        host = tensor.kept
    elif isinstance(tensor, SparseXlaTensor):
        host = tensor.detach().cpu()
    else:
        host = host_value(tensor)
    # Some kernels look at it: that of `torch.sparse.mm` keeps what its gradient needs, or nothing.
    return host.detach().requires_grad_() if tensor.requires_grad else host


def _back(
    result: Any, originals: dict[int, torch.Tensor], target: torch.device, is_view: bool = False
) -> Any:
    """The results as tensors of the device; what was written is the tensor that was given."""
    if isinstance(result, tuple | list):
        return type(result)(_back(part, originals, target, is_view) for part in result)
    if not isinstance(result, torch.Tensor) or id(result) in originals:
        return originals.get(id(result), result)
    index = device.index_of(target)
    if is_view:
        return keep(result, index)
    other = _other_kind(result, index)
    return to_device(result, target) if other is None else other


def _other_kind(tensor: torch.Tensor, index: int) -> torch.Tensor | None:
    """A CPU tensor as one of the device that is kept, or sparse; None where it is a plain one."""
    if is_to_be_kept(tensor.layout, tensor.dtype):
        return keep(tensor, index)
    is_sparse = tensor.layout is torch.sparse_coo
    return sparse.from_cpu(tensor, torch.device("xla", index)) if is_sparse else None


def _copy(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """A copy that no program can hold; NotImplemented for another one."""
    source, target = args[0], kwargs.get("device")
    if not is_to_be_kept(source.layout, kwargs.get("dtype") or source.dtype):
        return NotImplemented
    if isinstance(source, XlaTensor):
        return _on_host(op, args, kwargs)
    host = {**kwargs, "device": torch.device("cpu")}
    return keep(op.func(source, **host), device.index_of(target))


def _to_sparse(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    is_ours = kwargs.get("layout") in _LAYOUTS
    return _on_host(op, args, kwargs) if is_ours else sparse.HANDLERS[op.name](op, args, kwargs)


_MAKERS = [f"_to_sparse_{kind}.default" for kind in ("csr", "csc", "bsr", "bsc")]
HANDLERS = {
    **dict.fromkeys((f"aten.{name}" for name in _MAKERS), _on_host),
    "aten._sparse_compressed_tensor_unsafe.default": _on_host,
    "aten.sparse_compressed_tensor.comp_plain_value": _on_host,
    "aten.sparse_compressed_tensor.comp_plain_value_size": _on_host,
    "aten._to_sparse.default": _to_sparse,
}
handlers_copy.OF_OTHER_KINDS.append(_copy)
fallback.make_other_kinds_with(_other_kind)
# Of a sparse tensor of the device as well.
for _name in (*_MAKERS, "_to_sparse.default"):
    sparse.KERNELS[_name] = lambda *args, _op=f"aten.{_name}", **kwargs: _on_host(
        op_of(_op), args, kwargs
    )
