"""Host to device and back. Neither touches the trace, so any thread may call `to_device`."""

import time
from typing import Any

import jax
import numpy as np
import torch

from torch_xdist import device, dtypes, metrics
from torch_xdist.collectives import host
from torch_xdist.tensor import XlaTensor, wrap
from torch_xdist.trace import Cell, Trace, dense_kind

# torch dtypes numpy does not know, by the integer type of their bits.
_BITS = {
    torch.bfloat16: torch.int16,
    torch.float8_e4m3fn: torch.uint8,
    torch.float8_e5m2: torch.uint8,
    torch.float8_e4m3fnuz: torch.uint8,
    torch.float8_e5m2fnuz: torch.uint8,
}


def as_numpy(tensor: torch.Tensor) -> np.ndarray:
    """A CPU tensor as a numpy array of JAX's dtype; shares memory where it can."""
    dtype = dtypes.to_jax(tensor.dtype)
    plain = tensor.detach()
    if plain.dtype.is_complex:
        plain = plain.resolve_conj()
    plain = plain.resolve_neg().contiguous()
    bits = _BITS.get(tensor.dtype)
    if bits is None:
        return plain.numpy()
    return plain.view(bits).numpy().view(dtype)


def put(array: np.ndarray, index: int) -> jax.Array:
    """A copy of a host array on xla:`index`; the caller may write to its own afterwards."""
    started = time.perf_counter()
    buffer = jax.device_put(array, device.jax_device(index), may_alias=False)
    metrics.observe("TransferToDeviceTime", time.perf_counter() - started)
    return buffer


def to_device(tensor: torch.Tensor, target: Any = None) -> XlaTensor:
    """A copy of a CPU tensor on an xla device (default: the thread's)."""
    index = device.index_of(target)
    return wrap(cell_of(tensor, device.trace_of(index)))


def cell_of(tensor: torch.Tensor, trace: Trace) -> Cell:
    """A cell that holds a copy of a CPU tensor."""
    cell = Cell(dense_kind(tuple(tensor.shape), tensor.dtype), trace)
    cell.buffer = put(as_numpy(tensor), trace.device_index)
    return cell


def scalar_to_device(tensor: torch.Tensor, trace: Trace) -> XlaTensor:
    """A 0-d CPU tensor on the device of `trace`."""
    return wrap(cell_of(tensor, trace))


def to_host(buffer: jax.Array, dtype: torch.dtype) -> torch.Tensor:
    """A CPU tensor of its own memory with a buffer's values."""
    started = time.perf_counter()
    try:
        array = np.asarray(buffer)
    except (RuntimeError, ValueError) as error:
        raise host.taken_error() or error from None
    result = torch.empty(array.shape, dtype=dtype)
    bits = _BITS.get(dtype)
    if bits is None:
        result.numpy()[...] = array
    else:
        result.view(bits).numpy()[...] = array.view(dtypes.to_jax(bits))
    metrics.observe("TransferFromDeviceTime", time.perf_counter() - started)
    return result
