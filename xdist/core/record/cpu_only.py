"""What only the CPU can tell: shapes that depend on values, and torch's own error messages."""

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch._ops import OpOverload
from torch.utils import _pytree as pytree

from torch_xdist import settings
from torch_xdist.core.devices import transfer, uploaded
from torch_xdist.core.devices.tensor import XlaTensor
from torch_xdist.core.trace.user_frames import user_line
from torch_xdist.core.trace.values import ViewValue
from torch_xdist.errors import NoLoweringError
from torch_xdist.ops import doubts, index_ranges, kinds, number_ranges
from torch_xdist.ops.table import SHAPED

NAMES = frozenset({"aten.nonzero.default", "aten.masked_select.default"})
_INDEXED = frozenset({"aten.index.Tensor", "aten._unsafe_index.Tensor"})
_READ = torch.ops.aten.index.Tensor
_WRITTEN = frozenset({"aten.index_put.default", "aten._unsafe_index_put.default"})
_ASKED_BYTES = 40_000_000
# Of a call that is nearly always refused, before it touches memory.
_REFUSED_BYTES = 1 << 36
# Zeros of so many numbers are left as the system's untouched pages.
_PAGES = 1 << 16
MASKS = doubts.MASKS


class NoKernelError(NoLoweringError):
    """An operator on a kind of numbers for which torch has no kernel on any device."""


def is_wanted(func: OpOverload, metas: Sequence[Any]) -> bool:
    """Whether this call, given meta operands, is for the CPU."""
    name = str(func)
    if name in SHAPED:
        return False
    if name in NAMES or (torch.Tag.dynamic_output_shape in func.tags and name not in _INDEXED):
        return True
    if name in _INDEXED:
        return _has_mask(metas[1])
    # A mask beside other indices broadcasts with them, in as many places as are set.
    if name in _WRITTEN and _has_mask(metas[1]):
        return sum(i is not None for i in metas[1]) != 1
    return False


def _has_mask(indices: Sequence[Any]) -> bool:
    return any(i is not None and i.dtype in MASKS for i in indices)


def ask(func: OpOverload, metas: Sequence[Any], named: dict[str, Any]) -> Any:
    """Call an operator on CPU zeros, so that a wrong call raises what CPU torch raises.

    Large operands are not asked about: the message is not worth their memory. Returns the results,
    or None then.
    """
    return _on_zeros(func, metas, named, _ASKED_BYTES)


def refused(func: OpOverload, metas: Sequence[Any], named: dict[str, Any]) -> Any:
    """What CPU torch says of a call that its meta kernels may let pass and the CPU refuse.

    Returns its results, of zeros; None where there is no doubt, or where the call is computed
    though torch refuses it: as torch_xla did, with a warning, or because the CPU lacks a kernel
    (which of no other device is true where low precision or another kind of number is at fault).
    Raises torch's own error otherwise.
    """
    name = str(func).removeprefix("aten.")
    is_low = name in doubts.LOW_PRECISION and doubts.is_low(metas)
    is_taken = name in doubts.TAKEN and doubts.TAKEN[name](*metas)
    is_foreign = not is_taken and kinds.may_be_refused(name, metas)
    is_doubted = name in doubts.RULES and doubts.RULES[name](*metas)
    if not (is_low or is_taken or is_foreign or is_doubted):
        return None
    if str(func) in _WRITTEN and _has_mask(metas[1]) and metas[2].numel() != 1:
        metas = _without_values(*metas)
    try:
        return _on_zeros(func, metas, named, _REFUSED_BYTES)
    except NotImplementedError as error:
        if is_foreign:
            raise NoKernelError(
                f"{func}: {error}; torch has no kernel for such numbers on any device, and what XLA"
                " would make of them is not defined: cast them first, with"
                f" {kinds.cast_of(name)} for example"
            ) from error
        if is_low:
            raise
    except Exception as error:
        if not is_taken:
            raise
        warnings.warn(
            f"torch_xdist: {user_line()}: {name.partition('.')[0]}: {error}. torch says so on its"
            " other devices; here it is computed as torch_xla did it. Cast an operand for the rest",
            stacklevel=2,
        )
    return None


def refuse_numbers(
    func: Any, metas: Sequence[Any], named: dict[str, Any], dtype: torch.dtype
) -> None:
    """Raise what CPU torch says of a number that it cannot convert to what it computes in.

    It is asked with operands of two elements a dim: other errors mean nothing. For results that
    have infinities it is a warning: that is what torch_xla made of such numbers.
    """
    args, kwargs = pytree.tree_map(_small, (list(metas), named))
    try:
        with torch.no_grad():
            func(*args, **kwargs)
    except Exception as error:
        if "overflow" not in str(error):
            return
        if number_ranges.is_exact(dtype):
            raise
        name = str(func).removeprefix("aten.").partition(".")[0]
        warnings.warn(
            f"torch_xdist: {user_line()}: {name}: {error}. torch says so on its other devices; here"
            " the number becomes an infinity, as torch_xla made of it. Take one that the dtype"
            " holds, of torch.finfo(dtype)",
            stacklevel=2,
        )


def check_indices(
    func: OpOverload, rule: index_ranges.Rule, args: Sequence[Any], kwargs: dict[str, Any]
) -> None:
    """Raise torch's own error for an index that is out of range and came from the host."""
    for index, least, end, but in rule(*args, **kwargs):
        if uploaded.may_be_outside(index, least, end, but) and settings.current().check_indices:
            _ask_about_indices(func, rule, args, kwargs)
            return


def _ask_about_indices(
    func: OpOverload, rule: index_ranges.Rule, args: Sequence[Any], kwargs: dict[str, Any]
) -> None:
    on_host: dict[int, torch.Tensor] = {}
    for index, *_ in rule(*args, **kwargs):
        found = _known(index)
        # Zeros: which of the numbers in memory are read is not known.
        on_host[id(index)] = torch.zeros(index.shape, dtype=torch.int64) if found is None else found
    if isinstance(args[1], list):
        func, args, kwargs = _READ, (args[0], _without_masks(args[1])), {}

    def stand_in(x: Any) -> Any:
        return on_host.get(id(x), x.value.type.meta)

    metas, named = pytree.tree_map_only(XlaTensor, stand_in, (list(args), kwargs))
    _on_zeros(func, metas, named, _REFUSED_BYTES)


def _without_masks(indices: Sequence[Any]) -> list[Any]:
    """Indices with zeros for each dim that a mask is for."""
    found: list[Any] = []
    for index in indices:
        is_mask = index is not None and index.dtype in MASKS
        found += [torch.zeros(1, dtype=torch.int64)] * index.dim() if is_mask else [index]
    return found


def _known(index: torch.Tensor) -> torch.Tensor | None:
    """Indices that came from the host, of int64 there; None where they are not known."""
    if index.__class__ is not XlaTensor:
        return index.long()
    value = index.value
    if isinstance(value, ViewValue):
        found = transfer.part_on_host(value) if uploaded.known(value.root) else None
        return None if found is None else found.long()
    known = uploaded.known(value)
    return None if known is None else torch.from_numpy(known.array).long().reshape(index.shape)


def _without_values(self: Any, indices: Sequence[Any], values: Any, *rest: Any) -> Sequence[Any]:
    """An `index_put` with as many values as a mask of zeros selects."""
    dim, mask = next((d, i) for d, i in enumerate(indices) if i is not None)
    shape = (*self.shape[:dim], 0, *self.shape[dim + mask.dim() :])
    return [self, indices, values.new_empty(shape), *rest]


def _on_zeros(
    func: OpOverload, metas: Sequence[Any], named: dict[str, Any], most_bytes: int
) -> Any:
    """The results of a call, with CPU zeros for what is meta; None where these are larger."""
    values = (list(metas), named)
    tensors = [t for t in pytree.tree_leaves(values) if isinstance(t, torch.Tensor)]
    if sum(t.numel() * t.itemsize for t in tensors) > most_bytes:
        return None
    args, kwargs = pytree.tree_map(_zeros, values)
    with torch.no_grad():
        return func(*args, **kwargs)


def _small(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return torch.zeros([min(size, 2) for size in value.shape], dtype=value.dtype)
    return torch.device("cpu") if isinstance(value, torch.device) else value


def _zeros(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.is_meta:
        if value.numel() < _PAGES:
            return torch.zeros(value.shape, dtype=value.dtype)
        # numpy's are: a call that is refused touches none.
        memory = np.zeros(value.numel() * value.itemsize, np.uint8)
        return torch.from_numpy(memory).view(value.dtype).view(value.shape)
    return torch.device("cpu") if isinstance(value, torch.device) else value
