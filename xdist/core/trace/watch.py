"""What a call tells beside its rows to who wants to do without recording it next time.

Arrays that it put on the device, and where the numbers of an optimizer's update come from. Nobody
watches unless a function was declared pure (`xdist/replay`); then each of these asks one attribute.
"""

import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np


class Upload(NamedTuple):
    """An array that was put on the device.

    Attributes:
        buffer: its buffer there, as a weak reference: to hold it would keep it from being donated.
        array: a copy of its values; None where it is large.
        where: "file:line" of the user's.
    """

    buffer: "weakref.ref[Any]"
    array: np.ndarray | None
    where: str


class Update(NamedTuple):
    """One row that is the whole update of some parameters.

    Attributes:
        slot: of the row on its tape.
        params: the parameters.
        counters: the CPU tensor of each that counts its steps; none where steps do not count.
        names: the hyperparameters that the numbers are made of.
        numbers: `numbers(options, step)`: what the row is fed with, for the hyperparameters of the
            group that the parameters are in and the count after the step.
    """

    slot: int
    params: Sequence[Any]
    counters: Sequence[Any]
    names: tuple[str, ...]
    numbers: Callable[[Mapping[str, Any], float], tuple[float, ...]]


class Watch:
    """What one call told."""

    # Of an array whose values are kept.
    MOST_BYTES = 64 << 10

    def __init__(self) -> None:
        self.uploads: list[Upload] = []
        self.updates: list[Update] = []

    def uploaded(self, buffer: Any, array: np.ndarray, where: str) -> None:
        """An array was put on the device. On the CPU the buffer may have the array's memory."""
        values = array.copy() if array.nbytes <= self.MOST_BYTES else None
        self.uploads.append(Upload(weakref.ref(buffer), values, where))


class _Here(threading.local):
    """Who watches this thread; None where nobody does."""

    watch: Watch | None = None


HERE = _Here()
