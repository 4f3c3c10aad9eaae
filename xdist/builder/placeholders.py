"""Tensors without values, for graphs that are lowered and never run."""

from collections.abc import Sequence

import torch

from torch_xdist.core.devices import device
from torch_xdist.core.devices.tensor import XlaTensor, wrap
from torch_xdist.core.record.arguments import on_device
from torch_xdist.core.run.device_trace import trace_of_thread
from torch_xdist.core.trace.placeholders import Placeholder
from torch_xdist.core.trace.tensor_types import dense_type
from torch_xdist.core.trace.values import Value
from torch_xdist.dtypes import to_jax
from torch_xdist.errors import ValueLostError


def create_placeholder_tensor(shape: Sequence[int], dtype: torch.dtype) -> XlaTensor:
    """A tensor of this thread's device without a value, to be traced through.

    Reading it, or running a program that reads it, raises ValueLostError.
    """
    trace = trace_of_thread(device.device_at(device.default_index()))
    value = Value(dense_type(tuple(shape), dtype), trace)
    value.buffer = Placeholder(tuple(shape), to_jax(dtype))  # type: ignore[assignment]
    return wrap(value)


def is_placeholder(tensor: XlaTensor) -> bool:
    """Whether a tensor has no value: a placeholder, or one whose buffer was given away."""
    buffer = on_device(tensor, "_is_placecholder").value.buffer
    return buffer is not None and (isinstance(buffer, Placeholder) or buffer.is_deleted())


def handles(tensors: Sequence[XlaTensor]) -> list[int]:
    """A number for each tensor's buffer. Raises ValueLostError for one that was given away."""
    return [id(_living(tensor)) for tensor in tensors]


def _living(tensor: XlaTensor) -> object:
    buffer = on_device(tensor, "_get_tensors_handle").value.buffer
    if buffer is None or buffer.is_deleted():
        why = "pending" if buffer is None else "deleted: it was donated to a program"
        raise ValueLostError(
            f"handle of a tensor {tensor.value.type!r}: its buffer is {why}; ask for that of a"
            " tensor with a value"
        )
    return buffer
