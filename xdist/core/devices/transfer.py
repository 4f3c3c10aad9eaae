"""Host to device and back. Neither touches a tape, so any thread may call `to_device`."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import torch
from jax.sharding import NamedSharding
from numpy.lib.stride_tricks import as_strided

from torch_xdist import dtypes, metrics, platforms
from torch_xdist.collectives.shared_memory import transport as shared_memory
from torch_xdist.core.devices import device, host_rows, uploaded
from torch_xdist.core.devices.tensor import XlaTensor, wrap
from torch_xdist.core.early import announcement
from torch_xdist.core.programs import memory_bounds
from torch_xdist.core.programs.jax_internals import in_profile, put_on
from torch_xdist.core.run import mid_step_cuts
from torch_xdist.core.run.device_trace import buffer_of, check_process
from torch_xdist.core.sharding import gather, piece
from torch_xdist.core.sharding.arrays import HostArray, Parts
from torch_xdist.core.sharding.layout import Buffer
from torch_xdist.core.trace import op_counts, watch
from torch_xdist.core.trace.notes import is_noting, note_buffer
from torch_xdist.core.trace.tensor_types import TensorType, dense_type
from torch_xdist.core.trace.trace import Trace
from torch_xdist.core.trace.user_frames import user_line
from torch_xdist.core.trace.values import Device, RootValue, Value, ViewValue
from torch_xdist.errors import NoLoweringError

_BITS_IN_NUMPY = {torch.int16: np.int16, torch.uint8: np.uint8}
_ALIGNMENT = 64
# Up to here an array is copied twice sooner than a place is found that JAX takes as it is.
_SMALL_BYTES = 32 << 10
# From here on torch's threads copy: most of the time of new memory is that of its pages.
_LARGE_BYTES = 1 << 20
# The bytes that come from any device as soon as one element does.
_READ_WHOLE = 64 << 10
# What the metrics count of one array that goes to a device, and of one that is a number.
_UPLOADED: metrics.Tally = ((op_counts.CREATED, 1), ("CreateDataHandles", 1))
_NUMBER_UPLOADED: metrics.Tally = (("DeviceDataCacheMiss", 1),)
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
    if tensor.is_meta:
        # In torch's words, which `Module.to` looks for and adds to.
        raise NotImplementedError("Cannot copy out of meta tensor; no data!")
    if tensor.layout is not torch.strided:
        raise NoLoweringError(
            f"a tensor of layout {tensor.layout} cannot go to an xla device, which has strided "
            "and sparse COO tensors alone; call .to_dense() or .to_sparse() first"
        )
    plain = tensor.detach() if tensor.requires_grad else tensor
    if plain.is_conj():
        plain = plain.resolve_conj()
    if plain.is_neg():
        plain = plain.resolve_neg()
    plain = plain.contiguous()
    bits = _BITS.get(tensor.dtype)
    if bits is not None:
        return plain.view(bits).numpy().view(dtype)
    array = plain.numpy()
    return array if array.dtype is dtype else array.astype(dtype, copy=False)


def put(array: np.ndarray, there: Device) -> Buffer:
    """A copy of a host array on a device; the caller may write to its own afterwards."""
    return _put_copy(array, there)[1]


def _put_copy(array: np.ndarray, there: Device) -> tuple[np.ndarray, Buffer]:
    """A copy of a host array that nobody writes to, and that on a device."""
    started = time.perf_counter()
    if not array.ndim:
        metrics.note(_NUMBER_UPLOADED)
    copy = _private_copy(array)
    (buffer,) = _on_device([copy], there, started)
    return copy, buffer


def _on_device(arrays: Sequence[np.ndarray], there: Device, started: float) -> list[Buffer]:
    """Arrays that nobody writes to, on a device; on the logical one when they are needed."""
    metrics.look()
    made = _UPLOADED if len(arrays) == 1 else tuple((name, len(arrays)) for name, _ in _UPLOADED)
    if there.layout is not None:
        metrics.note(made, ("TensorToData", time.perf_counter() - started, 1))
        return [HostArray(array) for array in arrays]
    with in_profile("PjRtComputationClient::TransferToDevice"):
        buffers: list[Buffer] = [*map(_place(there.jax), arrays)]
    if is_noting():
        for buffer in buffers:
            note_buffer(buffer)
    if watch.HERE.watch is not None:
        for buffer, array in zip(buffers, arrays):
            watch.HERE.watch.uploaded(buffer, array, user_line())
    took_s = time.perf_counter() - started
    metrics.note(
        made,
        ("TensorToData", took_s, 1),
        ("TransferToDeviceTime", took_s, 1),
        ("OutboundData", sum(array.nbytes for array in arrays), 1),
    )
    return buffers


def _private_copy(array: np.ndarray) -> np.ndarray:
    """A copy nobody else writes to, aligned so that JAX's CPU backend takes it as it is.

    `device_put` of the original would share its memory with the user's tensor.
    """
    if array.nbytes <= _SMALL_BYTES:
        return array.copy()
    room = np.empty(array.nbytes + _ALIGNMENT, np.uint8)
    start = -room.ctypes.data % _ALIGNMENT
    if array.nbytes >= _LARGE_BYTES and array.flags.c_contiguous:
        copy = room[start : start + array.nbytes]
        torch.from_numpy(copy).copy_(piece.bytes_of(array))
        return copy.view(array.dtype).reshape(array.shape)
    copy = room[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


# Gives what puts an array that nobody writes to on a device.
_place: Callable[[jax.Device], Callable[[np.ndarray], Any]] = put_on


def place_with(place: Callable[[jax.Device], Callable[[np.ndarray], Any]]) -> None:
    """From now on `place` gives what makes buffers of arrays, for a device that is described."""
    global _place
    _place = place


def to_device(tensor: torch.Tensor, target: Any = None) -> XlaTensor:
    """A copy of a CPU tensor on an xla device (default: the thread's)."""
    index = device.index_of(target)
    return to_trace(tensor, device.trace_of(index))


def all_to_device(
    tensors: Sequence[torch.Tensor], target: Any = None, *, owned: bool = False, now: bool = False
) -> list[XlaTensor]:
    """CPU tensors on one xla device; the metrics count them as one transfer.

    Args:
        owned: nobody writes to these tensors any more. On the CPU their memory becomes the
            device's, without a copy.
        now: also the logical device takes them at once, all of each on every device.
    """
    trace = device.trace_of(device.index_of(target))
    started = time.perf_counter()
    arrays = [as_numpy(tensor) for tensor in tensors]
    if not owned:
        arrays = [_private_copy(array) for array in arrays]
    buffers = _on_device(arrays, trace.device, started)
    if now and trace.device.layout is not None:
        buffers = [trace.device.layout.placed(buffer) for buffer in buffers]
    # Tensors of a batch often have few types.
    types: dict[tuple[torch.Size, torch.dtype], TensorType] = {}
    moved = []
    for tensor, array, buffer in zip(tensors, arrays, buffers):
        key = tensor.shape, tensor.dtype
        type_ = types.get(key)
        if type_ is None:
            type_ = types[key] = dense_type(tuple(key[0]), key[1])
        moved.append(wrap(_holding(type_, trace, buffer, array)))
    return moved


def value_of(tensor: torch.Tensor, trace: Trace) -> Value:
    """A value that holds a copy of a CPU tensor."""
    type_ = dense_type(tuple(tensor.shape), tensor.dtype)
    array, buffer = _put_copy(as_numpy(tensor), trace.device)
    return _holding(type_, trace, buffer, array)


def _holding(type_: TensorType, trace: Trace, buffer: Buffer, array: np.ndarray) -> Value:
    """A value of a type that holds a buffer made of an array."""
    value = RootValue(type_, trace)
    value.buffer = buffer  # type: ignore[assignment]
    uploaded.keep(array, buffer)
    return value


def _put_into(tensor: torch.Tensor, value: Value) -> None:
    array, buffer = _put_copy(as_numpy(tensor), value.trace.device)
    value.buffer = buffer  # type: ignore[assignment]
    uploaded.keep(array, buffer)


host_rows.put_with(_put_into)


def to_trace(tensor: torch.Tensor, trace: Trace) -> XlaTensor:
    """A copy of a CPU tensor on the device of `trace`."""
    return wrap(value_of(tensor, trace))


def host_value(tensor: XlaTensor, *, may_compute: bool = False) -> torch.Tensor:
    """A CPU copy of a device tensor; cuts where the value is pending.

    Args:
        may_compute: not where the host can compute it.
    """
    metrics.note(op_counts.TO_CPU)
    value = tensor.value
    if value.parent is not None:
        found = part_on_host(value)  # type: ignore[arg-type]
        if found is not None:
            host_rows.keep_number(found, value)
            return found
    is_pending = value.buffer is None
    if may_compute and is_pending and (known := host_rows.computed(value)) is not None:
        return known
    found = to_host(buffer_of(value), value.type.dtype)
    if is_pending:
        mid_step_cuts.after_read()
    host_rows.keep_number(found, value)
    return found


def host_number(tensor: XlaTensor) -> Any:
    """The one number of a device tensor, as `item` gives it; cuts where the value is pending.

    Loops wait for it in each step, so numpy gives it where it has such numbers, and no CPU tensor
    is made in between.
    """
    value = tensor.value
    if value.parent is not None or value.type.numel != 1:
        return host_value(tensor, may_compute=value.type.numel == 1).item()
    metrics.note(op_counts.TO_CPU)
    is_pending = value.buffer is None
    if is_pending and (known := host_rows.computed(value)) is not None:
        return known.item()
    buffer = buffer_of(value)
    started = time.perf_counter()
    array = _read(buffer)[0]
    # Of dtypes that numpy does not know the items are no numbers of Python's.
    number = array.item() if array.dtype.isbuiltin == 1 else _copied(array, value.type.dtype).item()
    _note_read(array.nbytes, started)
    if is_pending:
        mid_step_cuts.after_read()
    if array.dtype.kind != "f":
        host_rows.keep_number(torch.tensor([number]), value)
    return number


def part_on_host(view: ViewValue) -> torch.Tensor | None:
    """A copy of a part of memory that has its values already; None where that needs a program.

    Each element that a script reads, `x[3].item()`, would be a program of its own.
    """
    root, kind = view.root, view.type
    if root.buffer is None or not root.type.is_plain or root.type.dtype != kind.dtype:
        return None
    if root.trace.device.layout is not None or not host_rows.only_strides(view):
        return None
    # By where the buffer is, whatever programs are for.
    is_host = platforms.of(root.trace.device.jax.platform).is_host
    is_near = root.buffer.nbytes <= _READ_WHOLE or is_host
    if not is_near:
        return None
    started = time.perf_counter()
    array = _read(root.buffer)[0]
    if not array.flags.c_contiguous:
        return None
    strides = [stride * array.itemsize for stride in kind.stride]
    flat = array.reshape(-1)[kind.offset :]
    part = as_strided(flat, kind.shape, strides, writeable=False)
    result = _copied(part, kind.dtype)
    _note_read(part.nbytes, started)
    return result


def to_host(buffer: Buffer, dtype: torch.dtype) -> torch.Tensor:
    """A CPU tensor of its own memory with a buffer's values."""
    started = time.perf_counter()
    array, is_private = _read(buffer)
    bits = _BITS.get(dtype)
    in_numpy = array if bits is None else array.view(_BITS_IN_NUMPY[bits])
    if is_private and array.itemsize == dtype.itemsize and array.flags.c_contiguous:
        held = torch.from_numpy(piece.writable(in_numpy))
        result = held if bits is None else held.view(dtype)
    else:
        result = _copied(array, dtype)
    _note_read(array.nbytes, started)
    return result


def _copied(array: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
    bits = _BITS.get(dtype)
    result = torch.empty(array.shape, dtype=dtype, device="cpu")
    is_whole = array.flags.c_contiguous and array.itemsize == dtype.itemsize
    if is_whole and array.nbytes >= _LARGE_BYTES:
        result.view(-1).view(torch.uint8).copy_(piece.bytes_of(array))
    elif bits is None:
        result.numpy()[...] = array
    else:
        result.view(bits).numpy()[...] = array.view(_BITS_IN_NUMPY[bits])
    return result


def host_bytes(buffer: Buffer, dtype: torch.dtype) -> np.ndarray:
    """The bytes of a buffer's values in row-major order, as uint8 [bytes], only to be read.

    On the CPU they are the buffer's own memory, so the buffer must not be donated meanwhile.
    """
    started = time.perf_counter()
    array = _read(buffer)[0].astype(dtypes.nominal(dtype), copy=False)
    _note_read(array.nbytes, started)
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _note_read(size_bytes: int, started: float) -> None:
    took_s = time.perf_counter() - started
    metrics.note((), ("TransferFromDeviceTime", took_s, 1), ("InboundData", size_bytes, 1))
    metrics.look()


def _read(buffer: Buffer) -> tuple[np.ndarray, bool]:
    """A buffer's values on the host, and whether nobody else holds their memory."""
    check_process()
    if isinstance(buffer, HostArray):
        return buffer.array, False
    if isinstance(buffer, Parts):
        return np.asarray(buffer), False
    if isinstance(getattr(buffer, "sharding", None), NamedSharding):
        return gather.whole(buffer), True
    number = announcement.read(buffer)
    if number is not None:
        return number, False
    try:
        return piece.read(buffer)
    except (RuntimeError, ValueError) as error:
        memory_bounds.raise_if_exhausted(error, getattr(buffer, "device", None))
        raise shared_memory.error_behind(error) or error from None
