"""Buffers that a user gives away, by torch_xla's names.

The mark belongs to a buffer, not to its tensor: what is written in its place is not marked.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import jax
import torch

from torch_xdist import metrics
from torch_xdist.core.devices.tensor import XlaTensor
from torch_xdist.core.trace import donation
from torch_xdist.core.trace.values import root_of


def set_buffer_donation(tensor: torch.Tensor, should_donate: bool) -> bool:
    """Give a tensor's buffer to the next program that reads it, which leaves it without a value.

    Returns whether there is a buffer: a pending tensor has none yet.
    """
    buffer = _buffer_of(tensor)
    if buffer is None:
        return False
    donation.give(buffer, should_donate)
    metrics.count("XlaSetBufferDonation")
    return True


def get_buffer_donation(tensor: torch.Tensor) -> bool:
    """Whether a tensor's buffer was given away."""
    buffer = _buffer_of(tensor)
    return buffer is not None and donation.is_given(buffer)


def _buffer_of(tensor: torch.Tensor) -> jax.Array | None:
    buffer = root_of(tensor.value).buffer if tensor.__class__ is XlaTensor else None  # type: ignore[attr-defined]
    return buffer if isinstance(buffer, jax.Array) else None


def xla_set_enable_alias_with_buffer_donor_config(should_alias: bool) -> None:
    """Let graphs that run by hash, and `_xla_sync_multi`, take what was given away."""
    donation.CONFIG.is_on = bool(should_alias)


def xla_get_enable_alias_with_buffer_donor_config() -> bool:
    """Whether they do."""
    return donation.CONFIG.is_on


@contextmanager
def alias_with_buffer_donor_config(should_alias: bool = True) -> Iterator[bool]:
    """In the block, graphs that run by hash take what was given away; yields what held before."""
    before = donation.CONFIG.is_on
    donation.CONFIG.is_on = should_alias
    try:
        yield before
    finally:
        donation.CONFIG.is_on = before
