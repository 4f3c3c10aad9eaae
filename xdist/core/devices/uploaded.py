"""What came from the host, and so is known there: integers, masks, and few other numbers.

An upload leaves its array with its value, which is that array until it is written to. On a CPU the
two share their memory.
"""

import weakref

import numpy as np
import torch

from torch_xdist.core.devices.tensor import XlaTensor
from torch_xdist.core.sharding.layout import Buffer
from torch_xdist.core.trace.values import Value, root_of

# Larger batches of integers take longer to look at than a step should.
_MOST = 1 << 16
# Times and noise levels that a library asks about; batches and parameters are no questions.
_MOST_FLOATS = 1 << 10


class Uploaded:
    """An array of numbers that a buffer was made of.

    Attributes:
        array: nobody writes to it, but programs to which the buffer was given away.
        buffer: refers to it weakly, as a program is given what nobody else holds.
    """

    __slots__ = ("__weakref__", "_bounds", "array", "buffer")

    def __init__(self, array: np.ndarray, buffer: Buffer) -> None:
        self.array = array
        self.buffer = weakref.ref(buffer)
        self._bounds: dict[int | None, tuple[int, int]] = {}

    def bounds(self, but: int | None) -> tuple[int, int]:
        """The least and the largest number that is another than `but`; (0, 0) where none is."""
        found = self._bounds.get(but)
        if found is None:
            found = self._bounds[but] = _bounds(self.array, but)
        return found


# By id.
_of_buffers: weakref.WeakValueDictionary[int, Uploaded] = weakref.WeakValueDictionary()


def _bounds(array: np.ndarray, but: int | None) -> tuple[int, int]:
    both = int(array.min()), int(array.max())
    if but not in both:
        return both
    others = array[array != but]
    return (int(others.min()), int(others.max())) if others.size else (0, 0)


def keep(value: Value, array: np.ndarray, buffer: Buffer) -> None:
    """Remember the array that the buffer of a value was made of."""
    kind = array.dtype.kind
    most = _MOST if kind in "iub" else _MOST_FLOATS if kind == "f" else 0
    if 0 < array.size <= most:
        value.uploaded = _of_buffers[id(buffer)] = Uploaded(array, buffer)


def of_buffer(buffer: Buffer) -> Uploaded | None:
    """What a buffer was made of, where a value that holds it remembers."""
    found = _of_buffers.get(id(buffer))
    return found if found is not None and found.buffer() is buffer else None


def keep_copy(value: Value, source: Value) -> None:
    """Remember the same of a value that was given the buffer of another."""
    found = known(source)
    if found is not None and value.buffer is source.buffer:
        value.uploaded = found


def known(value: Value) -> Uploaded | None:
    """What is known of a root that holds what was uploaded."""
    found: Uploaded | None = getattr(value, "uploaded", None)
    if found is None or value.buffer is None or value.buffer is not found.buffer():
        return None
    return found


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
