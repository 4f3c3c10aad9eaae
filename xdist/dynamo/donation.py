"""Buffers that a user gives away: a program compiled while donation is on may overwrite them.

The mark belongs to a buffer, not to its tensor: what is written in its place is not marked.
"""

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from torch_xdist import metrics
from torch_xdist.core.devices.tensor import XlaTensor
from torch_xdist.core.trace.values import root_of

# By id.
_marked: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
_is_on = False


def set_buffer_donation(tensor: torch.Tensor, should_donate: bool) -> bool:
    """Mark a tensor's buffer as one to give away, or not; False where it has none yet."""
    buffer = _buffer_of(tensor)
    if buffer is None:
        return False
    if should_donate:
        _marked[id(buffer)] = buffer
    else:
        _marked.pop(id(buffer), None)
    metrics.count("XlaSetBufferDonation")
    return True


def get_buffer_donation(tensor: torch.Tensor) -> bool:
    """Whether a tensor's buffer is marked."""
    buffer = _buffer_of(tensor)
    return buffer is not None and _marked.get(id(buffer)) is buffer


def _buffer_of(tensor: torch.Tensor) -> Any:
    return root_of(tensor.value).buffer if tensor.__class__ is XlaTensor else None  # type: ignore[attr-defined]


def is_to_be_donated(buffer: Any) -> bool:
    """Whether a program compiled now gives this buffer away."""
    return _is_on and _marked.get(id(buffer)) is buffer


def xla_set_enable_alias_with_buffer_donor_config(should_alias: bool) -> None:
    """Whether programs compiled from now on give marked buffers away."""
    global _is_on
    _is_on = bool(should_alias)


def xla_get_enable_alias_with_buffer_donor_config() -> bool:
    """What was set."""
    return _is_on


@contextmanager
def alias_with_buffer_donor_config(should_alias: bool = True) -> Iterator[bool]:
    """Programs compiled in the block give marked buffers away; yields what was set before."""
    before = _is_on
    xla_set_enable_alias_with_buffer_donor_config(should_alias)
    try:
        yield before
    finally:
        xla_set_enable_alias_with_buffer_donor_config(before)
