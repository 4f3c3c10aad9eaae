"""Running StableHLO on the device: a portable artifact as a row of the trace."""

import functools
from collections.abc import Sequence

import torch

from torch_xdist.core.devices import transfer
from torch_xdist.core.devices.tensor import XlaTensor
from torch_xdist.core.record.jax_ops import record_jax
from torch_xdist.dtypes import to_jax
from torch_xdist.export.plain_jax import Program


def run_stablehlo(bytecode: bytes, args: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The results of an artifact's main function, as one row of the trace; CPU tensors are moved.

    Raises ArgumentError for other shapes or dtypes than it takes.
    """
    program = _program(bytecode)
    tensors = [t if isinstance(t, XlaTensor) else transfer.to_device(t) for t in args]
    program.check([(tuple(t.shape), to_jax(t.dtype).name) for t in tensors])
    return list(record_jax(f"stablehlo.{program.digest}", program, tensors))


@functools.lru_cache(maxsize=64)
def _program(bytecode: bytes) -> Program:
    return Program(bytecode)
