"""What came from the host, and so is known there: integers, masks, and few other numbers.

The array of an upload stays as long as its buffer, which programs may hold longer than any tensor.
On a CPU the two share their memory.
"""

import functools
import weakref
from typing import Any

import numpy as np
import torch

from torch_xdist.core.devices.tensor import XlaTensor
from torch_xdist.core.sharding.layout import Buffer
from torch_xdist.core.trace.values import Value, root_of

# Larger batches of integers take longer to look at than a step should.
_MOST = 1 << 16
# Which nodes of a graph are for training.
_MOST_TRUTHS = 1 << 20
# Times and noise levels that a library asks about; batches and parameters are no questions.
_MOST_FLOATS = 1 << 10
_MOST_OF_KIND = {"i": _MOST, "u": _MOST, "b": _MOST_TRUTHS, "f": _MOST_FLOATS}


class Uploaded:
    """An array of numbers that a buffer was made of.

    Attributes:
        array: nobody writes to it, but programs to which the buffer was given away.
        buffer: refers to it weakly, as a program is given what nobody else holds.
    """

    __slots__ = ("__weakref__", "_bounds", "array", "buffer")

    def __init__(self, array: np.ndarray, buffer: Buffer) -> None:
        self.array = array
        self.buffer = weakref.ref(buffer, functools.partial(_forget, id(buffer)))
        self._bounds: dict[int | None, tuple[int, int]] = {}

    def bounds(self, but: int | None) -> tuple[int, int]:
        """The least and the largest number that is another than `but`; (0, 0) where none is."""
        found = self._bounds.get(but)
        if found is None:
            found = self._bounds[but] = _bounds(self.array, but)
        return found


# By id.
_of_buffers: dict[int, Uploaded] = {}


def _forget(of: int, buffer: Any) -> None:
    """A buffer is gone; another may have its id by now."""
    found = _of_buffers.get(of)
    if found is not None and found.buffer is buffer:
        del _of_buffers[of]


def _bounds(array: np.ndarray, but: int | None) -> tuple[int, int]:
    both = int(array.min()), int(array.max())
    if but not in both:
        return both
    others = array[array != but]
    return (int(others.min()), int(others.max())) if others.size else (0, 0)


def keep(array: np.ndarray, buffer: Buffer) -> None:
    """Remember the array that a buffer was made of."""
    if 0 < array.size <= _MOST_OF_KIND.get(array.dtype.kind, 0):
        _of_buffers[id(buffer)] = Uploaded(array, buffer)


def of_buffer(buffer: Buffer) -> Uploaded | None:
    """What a buffer was made of, where that is remembered."""
    found = _of_buffers.get(id(buffer))
    return found if found is not None and found.buffer() is buffer else None


def known(value: Value) -> Uploaded | None:
    """What is known of a root that holds what was uploaded."""
    return None if value.buffer is None else of_buffer(value.buffer)


def may_be_outside(index: torch.Tensor, least: int, end: int, but: int | None) -> bool:
    """Whether indices are known, and of those in their memory some are below `least` or not below
    `end`, which are not `but`."""
    if index.__class__ is XlaTensor:
        found = known(root_of(index.value))  # type: ignore[attr-defined]
        if found is None:
            return False
        smallest, largest = found.bounds(but)
    elif index.__class__ is torch.Tensor and index.numel() and index.dtype.is_signed:
        smallest, largest = (int(x) for x in index.aminmax())
    else:
        return False
    return smallest < least or largest >= end
