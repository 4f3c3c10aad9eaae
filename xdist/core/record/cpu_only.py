"""What only the CPU can tell: shapes that depend on values, and torch's own error messages."""

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch._ops import OpOverload
from torch.utils import _pytree as pytree

from torch_xdist.core.trace.user_frames import user_line
from torch_xdist.ops import doubts
from torch_xdist.ops.table import SHAPED

NAMES = frozenset({"aten.nonzero.default", "aten.masked_select.default"})
_INDEXED = frozenset({"aten.index.Tensor", "aten._unsafe_index.Tensor"})
_WRITTEN = frozenset({"aten.index_put.default", "aten._unsafe_index_put.default"})
_ASKED_BYTES = 40_000_000
# Of a call that is nearly always refused, before it touches memory.
_REFUSED_BYTES = 1 << 36
# Zeros of so many numbers are left as the system's untouched pages.
_PAGES = 1 << 16
MASKS = doubts.MASKS


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
    though torch refuses it: as torch_xla did, with a warning, or because the CPU lacks a kernel.
    Raises torch's own error otherwise.
    """
    name = str(func).removeprefix("aten.")
    is_low = name in doubts.LOW_PRECISION and doubts.is_low(metas)
    is_taken = name in doubts.TAKEN and doubts.TAKEN[name](*metas)
    if not (is_low or is_taken or (name in doubts.RULES and doubts.RULES[name](*metas))):
        return None
    if str(func) in _WRITTEN and _has_mask(metas[1]) and metas[2].numel() != 1:
        metas = _without_values(*metas)
    try:
        return _on_zeros(func, metas, named, _REFUSED_BYTES)
    except NotImplementedError:
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


def _without_values(self: Any, indices: Sequence[Any], values: Any, *rest: Any) -> Sequence[Any]:
    """An `index_put` with as many values as a mask of zeros selects."""
    dim, mask = next((d, i) for d, i in enumerate(indices) if i is not None)
    shape = (*self.shape[:dim], 0, *self.shape[dim + mask.dim() :])
    return [self, indices, values.new_empty(shape), *rest]


def _on_zeros(
    func: OpOverload, metas: Sequence[Any], named: dict[str, Any], most_bytes: int
) -> Any:
    """The results of a call on CPU zeros; None where these are larger than that."""
    values = (list(metas), named)
    tensors = [t for t in pytree.tree_leaves(values) if isinstance(t, torch.Tensor)]
    if sum(t.numel() * t.itemsize for t in tensors) > most_bytes:
        return None
    args, kwargs = pytree.tree_map(_zeros, values)
    with torch.no_grad():
        return func(*args, **kwargs)


def _zeros(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        if value.numel() < _PAGES:
            return torch.zeros(value.shape, dtype=value.dtype)
        # numpy's are: a call that is refused touches none.
        memory = np.zeros(value.numel() * value.itemsize, np.uint8)
        return torch.from_numpy(memory).view(value.dtype).view(value.shape)
    return torch.device("cpu") if isinstance(value, torch.device) else value
