"""A kernel that is already compiled for a TPU, as a row."""

from collections.abc import Sequence
from typing import Any

import jax
import torch

from torch_xdist import dtypes
from torch_xdist.core.record.jax_ops import record_jax
from torch_xdist.errors import DeviceError
from torch_xdist.kernels.rows import has_pallas


def _xla_tpu_custom_call(
    inputs: Sequence[torch.Tensor],
    payload: str,
    output_shapes: Sequence[Sequence[int]],
    output_dtypes: Sequence[torch.dtype],
) -> list[torch.Tensor]:
    """Run the kernel that `trace_pallas` compiled; one result for each shape and dtype."""
    if not has_pallas():
        raise DeviceError(
            "_xla_tpu_custom_call: this process has no TPU, and the kernel is compiled for one; use"
            " torch_xla.experimental.custom_kernel.make_kernel_from_pallas, which runs everywhere"
        )
    shapes = tuple((tuple(s), dtypes.to_jax(d)) for s, d in zip(output_shapes, output_dtypes))
    tensors: list[Any] = list(inputs)
    return list(
        record_jax("xla::tpu_custom_call", call_of(payload, shapes), tensors, (payload, shapes))
    )


def call_of(payload: str, shapes: Sequence[tuple[Sequence[int], Any]]) -> Any:
    """A JAX function of the kernel's operands."""
    results = [jax.ShapeDtypeStruct(tuple(shape), dtype) for shape, dtype in shapes]
    return jax.ffi.ffi_call(
        "tpu_custom_call",
        results,
        custom_call_api_version=1,
        legacy_backend_config=payload,
    )
