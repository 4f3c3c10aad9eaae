"""Buffers that hold nothing.

Operands of graphs that are looked at and never run, and tensors whose rows were forgotten.
"""

import weakref
from typing import Any

import numpy as np

from torch_xdist.core.trace.trace import Tape, rows_of
from torch_xdist.errors import ValueLostError

# Why one has no value, and what to do.
STANDS_IN = "has none; it only stands for an operand where a graph is lowered"
FORGOTTEN = "was forgotten before it was computed (_clear_pending_irs); compute it again"

# Those that somebody holds; while there is none, nobody looks for them.
_ALIVE: "weakref.WeakSet[Placeholder]" = weakref.WeakSet()
_were_made = False


def are_alive() -> bool:
    """Whether somebody holds one."""
    # Each cut asks, and the length of such a set is a function of Python's.
    return _were_made and bool(_ALIVE)


class Placeholder:
    """The shape and the dtype of an array, in the place of one."""

    __slots__ = ("__weakref__", "_why", "dtype", "shape")

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype, why: str = STANDS_IN) -> None:
        self.shape = shape
        self.dtype = dtype
        self._why = why
        global _were_made
        _were_made = True
        _ALIVE.add(self)

    def is_deleted(self) -> bool:
        """What JAX's arrays are asked before they are used again."""
        return False

    def block_until_ready(self) -> "Placeholder":
        """There is nothing to wait for."""
        return self

    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        raise self._error("a read of its value")

    def _error(self, where: str) -> ValueLostError:
        return ValueLostError(
            f"placeholder tensor of shape {self.shape} and dtype {self.dtype}: {where}, but it"
            f" {self._why}"
        )


def check_none(buffers: Any) -> None:
    """Raise ValueLostError where a program that shall run reads a placeholder."""
    for buffer in buffers:
        if isinstance(buffer, Placeholder):
            raise buffer._error("a program that shall run reads it")


def dependents(tape: Tape) -> set[int]:
    """The slots of placeholders on a tape, and of all that is computed of them."""
    found = {slot for slot, buffer in tape.buffers.items() if isinstance(buffer, Placeholder)}
    if found:
        for slot, row in rows_of(tape.entries):
            if not found.isdisjoint(row[1:]):
                found.update(range(slot, slot + max(1, len(row[0].types))))
    return found
