"""What only the CPU can tell: shapes that depend on values, and torch's own error messages."""

from collections.abc import Sequence
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils import _pytree as pytree

from torch_xdist.ops.table import SHAPED

NAMES = frozenset({"aten.nonzero.default", "aten.masked_select.default"})
_INDEXED = frozenset({"aten.index.Tensor", "aten._unsafe_index.Tensor"})
_WRITTEN = frozenset({"aten.index_put.default", "aten._unsafe_index_put.default"})
_ASKED_ELEMENTS = 10_000_000
MASKS = (torch.bool, torch.uint8)


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


def ask(func: OpOverload, metas: Sequence[Any], named: dict[str, Any]) -> None:
    """Call an operator on CPU zeros, so that a wrong call raises what CPU torch raises.

    Large operands are not asked about: the message is not worth their memory.
    """
    values = (list(metas), named)
    tensors = [t for t in pytree.tree_leaves(values) if isinstance(t, torch.Tensor)]
    if sum(t.numel() for t in tensors) > _ASKED_ELEMENTS:
        return
    args, kwargs = pytree.tree_map(_zeros, values)
    with torch.no_grad():
        func(*args, **kwargs)


def _zeros(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return torch.zeros(value.shape, dtype=value.dtype)
    return torch.device("cpu") if isinstance(value, torch.device) else value
