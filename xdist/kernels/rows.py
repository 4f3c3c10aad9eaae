"""Kernels as rows of the trace: which form runs here, and operands that may be missing."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import torch
from jax.sharding import PartitionSpec as Axes

from torch_xdist.core.devices import device as devices_here
from torch_xdist.core.devices.tensor import XlaTensor
from torch_xdist.core.record.jax_ops import record_jax
from torch_xdist.spmd.mesh import Mesh, PartitionSpec

Form = Callable[..., Any]


def is_on_device(tensor: torch.Tensor) -> bool:
    """Whether a kernel is to be a row, and not plain torch."""
    return tensor.__class__ is XlaTensor


def has_pallas() -> bool:
    """Whether Pallas's kernels for TPUs run here."""
    return devices_here.choices().has_pallas


def in_32_bits(kernel: Form) -> Form:
    """A kernel of JAX's, which is written for its default of 32 bits; the device has 64 on."""

    @functools.wraps(kernel)
    def call(*arrays: Any, **static: Any) -> Any:
        with jax.enable_x64(False):
            return kernel(*arrays, **static)

    return call


def form_here(pallas: Form, plain: Form) -> Form:
    """The kernel on a TPU, elsewhere what computes the same by XLA's own operators."""
    return _form(pallas, plain, has_pallas())


@functools.cache
def _form(pallas: Form, plain: Form, on_tpu: bool) -> Form:
    # One function object for each kernel, by which its rows are known.
    return in_32_bits(pallas) if on_tpu else plain


def kernel_row(
    name: str, form: Form, tensors: Sequence[torch.Tensor | None], **static: Any
) -> list[torch.Tensor]:
    """Record `form(*arrays, **static)`; a missing operand is None there too.

    `form` must be one function object for each computation; the static values must be hashable.
    """
    is_there = tuple(tensor is not None for tensor in tensors)

    def call(*arrays: jax.Array) -> Any:
        given = iter(arrays)
        return form(*(next(given) if there else None for there in is_there), **static)

    kinds = tuple((word, type(value), value) for word, value in sorted(static.items()))
    there: list[Any] = [tensor for tensor in tensors if tensor is not None]
    return list(record_jax(name, call, there, (form, is_there, kinds)))


def axes_of(mesh: Mesh, spec: PartitionSpec) -> Axes:
    """A partition spec by the names that the mesh has as JAX's."""
    names = mesh.get_jax_mesh().axis_names
    return Axes(*[tuple(names[axis] for axis in mesh.axes(entry, spec)) or None for entry in spec])
