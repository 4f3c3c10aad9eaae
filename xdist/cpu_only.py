"""Calls whose result's shape depends on values: they go to the CPU without being tried."""

from collections.abc import Sequence
from typing import Any

import torch
from torch._ops import OpOverload

_NAMES = frozenset({"aten.nonzero.default", "aten.masked_select.default"})
_INDEXED = frozenset({"aten.index.Tensor", "aten._unsafe_index.Tensor"})
_WRITTEN = frozenset({"aten.index_put.default", "aten._unsafe_index_put.default"})
_MASKS = (torch.bool, torch.uint8)


def is_wanted(func: OpOverload, metas: Sequence[Any]) -> bool:
    """Whether this call, given meta operands, is for the CPU."""
    name = str(func)
    if name in _NAMES or (torch.Tag.dynamic_output_shape in func.tags and name not in _INDEXED):
        return True
    if name in _INDEXED:
        return _has_mask(metas[1])
    # One mask and one value is a `where`; anything else depends on how many are set.
    if name in _WRITTEN and _has_mask(metas[1]):
        return metas[2].numel() != 1 or len(metas[1]) != 1
    return False


def _has_mask(indices: Sequence[Any]) -> bool:
    return any(i is not None and i.dtype in _MASKS for i in indices)
