"""Tensors shared with other frameworks by DLPack."""

from typing import Any

import jax
import torch

from torch_xdist import dtypes
from torch_xdist.core.devices import device
from torch_xdist.core.devices.tensor import XlaTensor, wrap
from torch_xdist.core.run.device_trace import buffer_of
from torch_xdist.core.trace import donation
from torch_xdist.core.trace.tensor_types import dense_type
from torch_xdist.core.trace.values import Value


def to_dlpack(xla_tensor: torch.Tensor) -> Any:
    """A DLPack capsule of the tensor's buffer; its value is computed now. Shares memory."""
    if not isinstance(xla_tensor, XlaTensor):
        raise TypeError(
            f"to_dlpack: the tensor is on {xla_tensor.device}; move it to an xla device, or use"
            " torch.to_dlpack"
        )
    # A capsule says nothing of streams, so who takes it on a GPU cannot wait for the value.
    return donation.export(buffer_of(xla_tensor.value)).block_until_ready().__dlpack__()


def from_dlpack(ext_tensor: Any) -> torch.Tensor:
    """A device tensor of what another framework exports (an object with `__dlpack__`).

    The values are copied where the memory lies on another device, or is not aligned for XLA.
    """
    array = jax.dlpack.from_dlpack(ext_tensor)
    index = device.default_index()
    type_ = dense_type(tuple(array.shape), dtypes.to_torch(array.dtype))
    value = Value(type_, device.trace_of(index))
    # Its owner's memory may not be given to a program for results: on GPUs XLA aborts over that.
    value.buffer = donation.export(jax.device_put(array, device.jax_device(index)))
    return wrap(value)
