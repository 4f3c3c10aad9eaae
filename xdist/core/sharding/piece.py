"""The values of an array that lies on one device, on the host, in memory that nobody else holds.

JAX keeps the host's copy of an array of a GPU or TPU with that array: whoever reads it again gets
the same memory, and a model that was read would stay on the host. A second handle on the same
memory of the device has a copy of its own, which goes with it.
"""

import ctypes
from typing import Any

import jax
import numpy as np
import torch

from torch_xdist import platforms

# Up to here another copy takes less than another handle, and what stays is small.
_SMALL_BYTES = 64 << 10


def read(array: Any) -> tuple[np.ndarray, bool]:
    """Its values, and whether nobody else holds their memory (a CPU's arrays are the host's own).

    The values may only be read; `writable` gives what is written to.
    """
    copied = getattr(array, "_single_device_array_to_np_array_did_copy", None)
    if copied is None:
        return np.asarray(array), False
    if not isinstance(array, jax.Array):
        return copied()
    if array.nbytes <= _SMALL_BYTES or platforms.of(_platform(array)).is_host:
        return copied()[0], False
    other: Any = jax.make_array_from_single_device_arrays(array.shape, array.sharding, [array])
    return other._single_device_array_to_np_array_did_copy()


def _platform(array: Any) -> str:
    return array.device.platform


def writable(array: np.ndarray) -> np.ndarray:
    """The same memory, to be written to by whoever alone holds it. In rows without gaps."""
    if array.flags.writeable:
        return array
    # numpy lets nobody change the flag of memory that is not its own.
    memory: Any = (ctypes.c_char * array.nbytes).from_address(array.ctypes.data)
    memory.held = array
    return np.frombuffer(memory, array.dtype).reshape(array.shape)


class _Memory:
    """The memory of an array, which torch takes without a warning although it may be constant."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array
        self.__array_interface__ = {
            "data": (array.ctypes.data, False),
            "shape": (array.nbytes,),
            "typestr": "|u1",
            "version": 3,
        }


def bytes_of(array: np.ndarray) -> torch.Tensor:
    """The bytes of a contiguous array, uint8 [bytes], only to be read."""
    return torch.from_numpy(np.asarray(_Memory(array)))
