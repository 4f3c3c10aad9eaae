"""Sparse COO tensors on the device: indices and values, two strided device tensors.

torch makes them as the gradient of `nn.Embedding(sparse=True)`; SGD, Adagrad and SparseAdam take
them. Each operator here is written in operators on the two parts, so it needs no lowering of its
own. `coalesce` and `to_sparse` ask how many elements there are: a counted cut through the CPU, and
a new program where that number changes.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from torch_xdist.core.devices.tensor import AUTOCAST_KEYS, XlaTensor
from torch_xdist.core.record import handlers_copy
from torch_xdist.core.trace.operators import Op
from torch_xdist.core.trace.tensor_types import contiguous_strides
from torch_xdist.errors import NoLoweringError

Kernel = Callable[..., Any]
# Called with torch's arguments, at least one of which is sparse.
KERNELS: dict[str, Kernel] = {}
# Called with torch's arguments, all of them strided: these make sparse ones.
MAKERS: dict[str, Kernel] = {}


class SparseXlaTensor(XlaTensor):
    """A sparse COO tensor. Made by `sparse`; no value, so what needs strides refuses it."""

    indices_part: torch.Tensor  # [sparse dims, entries] int64
    values_part: torch.Tensor  # [entries, *dense dims]
    is_one_each: bool  # every index stands once, in order

    @staticmethod
    def __torch_dispatch__(  # type: ignore[override]
        func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name = str(func).removeprefix("aten.")
        kernel = KERNELS.get(name)
        if kernel is not None:
            return kernel(*args, **(kwargs or {}))
        if name.startswith("_foreach_"):
            return one_by_one(name, args, kwargs or {})
        if func._can_decompose():  # torch makes it of others, above autograd
            return func.decompose(*args, **(kwargs or {}))
        raise NoLoweringError(
            f"aten.{name} takes no sparse tensor on an xla device; call .to_dense() or .cpu() first"
        )

    @property
    def value(self) -> Any:  # type: ignore[override]
        raise NoLoweringError(
            "a sparse tensor stands where an xla device needs a strided one; call .to_dense() first"
        )

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return self.values_part.device

    @property
    def data(self) -> "SparseXlaTensor":  # type: ignore[override]
        return self.detach()  # type: ignore[return-value]

    def __deepcopy__(self, memo: dict[int, Any]) -> "SparseXlaTensor":
        return memo.setdefault(id(self), self.detach().clone())

    def new(  # type: ignore[override]
        self, indices: torch.Tensor, values: torch.Tensor, size: Sequence[int]
    ) -> "SparseXlaTensor":
        """The old constructor, which torch's optimizers call."""
        return sparse(indices, values, size)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"{repr(self.cpu())[:-1]}, device='{self.device}')"


def sparse(
    indices: torch.Tensor, values: torch.Tensor, size: Sequence[int], is_one_each: bool = False
) -> SparseXlaTensor:
    """The sparse tensor with these parts, which are not copied."""
    tensor = torch.Tensor._make_wrapper_subclass(
        SparseXlaTensor,
        tuple(size),
        dtype=values.dtype,
        layout=torch.sparse_coo,
        device=values.value.trace.device.lazy,  # type: ignore[attr-defined]
        dispatch_layout=True,
        _extra_dispatch_keys=AUTOCAST_KEYS,
    )
    tensor.indices_part = indices
    tensor.values_part = values
    tensor.is_one_each = is_one_each
    return tensor


def kernel(*names: str) -> Callable[[Kernel], Kernel]:
    """Enter the kernel of some overloads, called with torch's arguments."""

    def enter(function: Kernel) -> Kernel:
        KERNELS.update(dict.fromkeys(names, function))
        return function

    return enter


def with_values(x: SparseXlaTensor, values: torch.Tensor) -> SparseXlaTensor:
    """The same entries with other values."""
    return sparse(x.indices_part, values, x.shape, x.is_one_each)


def take_over(x: SparseXlaTensor, other: SparseXlaTensor) -> SparseXlaTensor:
    """Make `x` the same tensor as `other`: what an in-place operator does."""
    x.indices_part, x.values_part = other.indices_part, other.values_part
    x.is_one_each = other.is_one_each
    return x


def one_by_one(name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any] | None:
    """A foreach operator as calls of the operator it is named after."""
    method = name.removeprefix("_foreach_").partition(".")[0]
    rows = [arg if isinstance(arg, list | tuple) else [arg] * len(args[0]) for arg in args]
    results = [getattr(torch.Tensor, method)(*row, **kwargs) for row in zip(*rows)]
    return None if method.endswith("_") else results


def gathered(dense: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """The values of a strided tensor at these places: [entries, *dense dims]."""
    if not len(indices):
        return dense.expand(indices.shape[1], *dense.shape).clone()
    return dense[tuple(indices.unbind(0))]


def added(dense: torch.Tensor, indices: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """A strided tensor to which values were added at these places, in place."""
    if not len(indices):
        return dense.add_(values.sum(0, dtype=values.dtype))  # Of bools: whether there is one.
    return dense.index_put_(tuple(indices.unbind(0)), values, accumulate=True)


@kernel("_indices.default")
def entries_indices(x: SparseXlaTensor) -> torch.Tensor:
    return x.indices_part.detach()


@kernel("_values.default")
def entries_values(x: SparseXlaTensor) -> torch.Tensor:
    return x.values_part.detach()


@kernel("indices.default")
def indices(x: SparseXlaTensor) -> torch.Tensor:
    _need_one_each(x, "indices")
    return x.indices_part.detach()


@kernel("values.default")
def values(x: SparseXlaTensor) -> torch.Tensor:
    _need_one_each(x, "values")
    return x.values_part.detach()


def _need_one_each(x: SparseXlaTensor, what: str) -> None:
    if not x.is_one_each:
        raise RuntimeError(
            f"Cannot get {what} on an uncoalesced tensor, please call .coalesce() first"
        )


KERNELS["prim.layout.default"] = lambda x: torch.sparse_coo
KERNELS["is_coalesced.default"] = lambda x: x.is_one_each
KERNELS["_nnz.default"] = lambda x: x.values_part.shape[0]
KERNELS["sparse_dim.default"] = KERNELS["_dimI.default"] = lambda x: x.indices_part.shape[0]
KERNELS["dense_dim.default"] = KERNELS["_dimV.default"] = lambda x: x.values_part.dim() - 1


@kernel("_coalesced_.default")
def set_coalesced(x: SparseXlaTensor, coalesced: bool) -> SparseXlaTensor:
    x.is_one_each = coalesced
    return x


@kernel("_coalesce.default")
def coalesce(x: SparseXlaTensor) -> SparseXlaTensor:
    """Every index once, in order; values of equal indices are added."""
    if x.is_one_each or len(x.values_part) < 2:
        return sparse(x.indices_part, x.values_part, x.shape, True)
    sizes = x.shape[: len(x.indices_part)]
    strides = contiguous_strides(tuple(sizes))
    factors = torch.tensor(strides, dtype=torch.int64).to(x.device)[:, None]
    flat = (x.indices_part * factors).sum(0)
    different, group = torch.unique(flat, return_inverse=True)
    values = x.values_part.new_zeros((len(different), *x.values_part.shape[1:]))
    limits = torch.tensor(sizes, dtype=torch.int64).to(x.device)[:, None]
    places = different // factors % limits
    return sparse(places, values.index_add_(0, group, x.values_part), x.shape, True)


@kernel("_to_dense.default")
def to_dense(
    x: SparseXlaTensor, dtype: torch.dtype | None = None, masked_grad: bool | None = None
) -> torch.Tensor:
    values = x.values_part.to(dtype or x.dtype)
    return added(values.new_zeros(x.shape), x.indices_part, values)


def to_sparse(
    dense: torch.Tensor, *, layout: Any = None, blocksize: Any = None, dense_dim: int | None = None
) -> SparseXlaTensor:
    return _entries_of(dense, dense.dim() - (dense_dim or 0))


def _entries_of(dense: torch.Tensor, sparse_dim: int) -> SparseXlaTensor:
    is_entry = dense != 0
    if sparse_dim < dense.dim():
        is_entry = is_entry.flatten(sparse_dim).any(-1)
    found = is_entry.nonzero().t()
    return sparse(found, gathered(dense, found), dense.shape, True)


def made_of_parts(
    sparse_dim: int,
    dense_dim: int,
    size: Sequence[int],
    indices: torch.Tensor,
    values: torch.Tensor,
    *,
    is_coalesced: bool | None = None,
    **options: Any,
) -> SparseXlaTensor:
    return sparse(indices, values, size, bool(is_coalesced))


@kernel("sparse_mask.default")
def masked(dense: torch.Tensor, mask: SparseXlaTensor) -> SparseXlaTensor:
    """The entries of `mask` with the values of `dense`."""
    if isinstance(dense, SparseXlaTensor):
        dense = to_dense(dense)
    return with_values(mask, gathered(dense, mask.indices_part))


MAKERS["_to_sparse.default"] = to_sparse
MAKERS["_to_sparse.sparse_dim"] = _entries_of
MAKERS["_sparse_coo_tensor_with_dims_and_tensors.default"] = made_of_parts
MAKERS["sparse_mask.default"] = masked


@kernel("_to_copy.default")
def to_copy(x: SparseXlaTensor, **kwargs: Any) -> torch.Tensor:
    """A copy, of another dtype or on another device."""
    device = kwargs.get("device") or x.device
    indices = x.indices_part.to(device)
    values = x.values_part.to(device, kwargs.get("dtype") or x.dtype, copy=True)
    if isinstance(values, XlaTensor):
        return sparse(indices, values, x.shape, x.is_one_each)
    return torch.sparse_coo_tensor(
        indices, values, x.shape, is_coalesced=x.is_one_each, check_invariants=False
    )


def from_cpu(tensor: torch.Tensor, target: Any) -> SparseXlaTensor:
    """A sparse COO tensor of the CPU on an xla device."""
    parts = tensor._indices().to(target), tensor._values().to(target)
    return sparse(*parts, tensor.shape, tensor.is_coalesced())


def _made_sparse(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> XlaTensor:
    return MAKERS[op.name.removeprefix("aten.")](*args, **kwargs)


def _copy(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """A sparse CPU tensor is moved by its parts."""
    source = args[0]
    if source.__class__ is XlaTensor or source.layout is not torch.sparse_coo:
        return NotImplemented
    return from_cpu(source.to(dtype=kwargs.get("dtype") or source.dtype), kwargs.get("device"))


def _bag_backward(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> XlaTensor:
    gradient, indices, offsets, bag_of, bag_size, _, rows, by_frequency, mode, is_sparse = args[:10]
    if not is_sparse:
        return op.general(op, args, kwargs)  # type: ignore[misc]
    return torch.ops.aten._embedding_bag_sparse_backward(
        gradient, indices, offsets, bag_of, bag_size, rows, by_frequency, mode, *args[10:], **kwargs
    )


HANDLERS = {
    **dict.fromkeys((f"aten.{name}" for name in MAKERS), _made_sparse),
    "aten._embedding_bag_backward.default": _bag_backward,
}
handlers_copy.OF_OTHER_KINDS.append(_copy)
