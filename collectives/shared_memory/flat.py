"""Arrays as one flat one, without copying them together, and the parts that members have of it."""

import itertools
from bisect import bisect_right
from collections.abc import Iterator, Sequence

import numpy as np

from torch_xdist.collectives.shared_memory.segment import Span


class Flat:
    """Arrays (contiguous, one dtype) as one flat one, without copying them together."""

    def __init__(self, arrays: Sequence[np.ndarray]) -> None:
        self._arrays = [array.reshape(-1) for array in arrays if array.size]
        self._starts = [0]
        for array in self._arrays:
            self._starts.append(self._starts[-1] + array.size)
        self.size = self._starts[-1]

    def read(self, start: int, stop: int, into: np.ndarray) -> None:
        """Copy elements start..stop to the front of `into`."""
        parts = list(self._parts(start, stop))
        if len(parts) == 1:
            into[: stop - start] = parts[0]
        elif parts:
            np.concatenate(parts, out=into[: stop - start])

    def write(self, start: int, source: np.ndarray) -> None:
        """Copy all of `source` to the elements from `start` on."""
        done = 0
        for part in self._parts(start, start + source.size):
            part[...] = source[done : done + part.size]
            done += part.size

    def addresses(self) -> np.ndarray:
        """Where each array lies in this process; uint64."""
        return np.array([array.ctypes.data for array in self._arrays], np.uint64)

    def places(self, start: int, stop: int) -> Iterator[tuple[int, int, np.ndarray]]:
        """The parts of elements start..stop: the array's number, where in it, the part itself."""
        for part in self._parts(start, stop):
            index = bisect_right(self._starts, start) - 1
            yield index, start - self._starts[index], part
            start += part.size

    def view(self, start: int, stop: int) -> np.ndarray | None:
        """Elements start..stop where they lie, if they lie in one array."""
        parts = list(self._parts(start, stop))
        return parts[0] if len(parts) == 1 else None

    def _parts(self, start: int, stop: int) -> Iterator[np.ndarray]:
        index = bisect_right(self._starts, start) - 1
        while start < stop:
            base = self._starts[index]
            end = min(stop, self._starts[index + 1])
            yield self._arrays[index][start - base : end - base]
            start, index = end, index + 1


def slices(start: int, stop: int, members: int) -> list[Span]:
    """A span in as many parts as there are members, nearly equal; the last ones may be empty."""
    step = -(-(stop - start) // members)
    edges = [min(start + step * m, stop) for m in range(members + 1)]
    return list(itertools.pairwise(edges))
