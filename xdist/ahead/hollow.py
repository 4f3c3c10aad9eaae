"""Buffers of a device that is not here: a shape, a dtype, and no memory.

A rehearsal (see `rehearsal`) has these in the place of JAX's arrays. Read, they are zeros; a small
array that came from the host is still what it was, so that a script can read its own settings back.
"""

import sys
import threading
from typing import Any

import numpy as np

from torch_xdist.core.trace.user_frames import shortened, user_line

# What came from the host is kept up to here.
_KEPT_BYTES = 1 << 20
_TOLD = (
    "nothing is computed while a job is compiled for a topology, so what is read from the device is"
    " zeros (told once)"
)


class Tally:
    """How many bytes the buffers have that are alive: on one chip, before its padding."""

    def __init__(self) -> None:
        self.live_bytes = 0
        self.has_told = False
        self.lock = threading.Lock()

    def add(self, size_bytes: int) -> None:
        """Count a buffer, or with a minus one that is gone."""
        with self.lock:
            self.live_bytes += size_bytes

    def tell_of_reading(self) -> None:
        """Say once that values are zeros."""
        if not self.has_told:
            self.has_told = True
            print(f"torch_xdist: {shortened(user_line())}: {_TOLD}", file=sys.stderr, flush=True)


TALLY = Tally()


class Hollow:
    """What stands where an array would be; `local_bytes` are those of one chip's part."""

    __slots__ = ("__weakref__", "_deleted", "_held", "dtype", "local_bytes", "shape", "sharding")

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype, sharding: Any = None) -> None:
        self.shape = tuple(shape)
        self.dtype = np.dtype(dtype)
        self.sharding = sharding
        self._held: np.ndarray | None = None
        self._deleted = False
        local = self.shape if sharding is None else sharding.shard_shape(self.shape)
        self.local_bytes = int(np.prod(local, dtype=np.int64)) * self.dtype.itemsize
        TALLY.add(self.local_bytes)

    @classmethod
    def of(cls, array: np.ndarray, sharding: Any = None) -> "Hollow":
        """In the place of an array of the host, to which nobody writes any more."""
        made = cls(array.shape, array.dtype, sharding)
        if array.nbytes <= _KEPT_BYTES:
            made._held = array
        return made

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    @property
    def is_fully_replicated(self) -> bool:
        """Whether all of it is read in one place, as JAX has it: it is zeros wherever it lies."""
        return True

    def addressable_data(self, place: int) -> "Hollow":
        """What is read of it in one place."""
        return self

    def copy(self) -> "Hollow":
        """Another of the same values."""
        made = Hollow(self.shape, self.dtype, self.sharding)
        made._held = self._held
        return made

    def is_deleted(self) -> bool:
        """Whether a program used it up."""
        return self._deleted

    def delete(self) -> None:
        """A program used it up."""
        if not self._deleted:
            self._deleted, self._held = True, None
            TALLY.add(-self.local_bytes)

    def is_ready(self) -> bool:
        """Nothing is on its way."""
        return True

    def block_until_ready(self) -> "Hollow":
        """There is nothing to wait for."""
        return self

    def _single_device_array_to_np_array_did_copy(self) -> tuple[np.ndarray, bool]:
        """Its values on the host, and whether nobody else holds their memory, as JAX has it."""
        if self._held is not None:
            return self._held, False
        TALLY.tell_of_reading()
        return np.zeros(self.shape, self.dtype), True

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self._single_device_array_to_np_array_did_copy()[0], dtype)

    def __del__(self) -> None:
        self.delete()
