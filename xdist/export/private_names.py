"""The private calls of torch_xla's that have to do with StableHLO."""

from collections.abc import Sequence
from typing import Any

import torch

from torch_xdist.export.pending import get_stablehlo, get_stablehlo_bytecode
from torch_xdist.export.run import run_stablehlo


def _get_stablehlo(
    tensors: Sequence[torch.Tensor], device: str, devices: Sequence[str], emit_bytecode: bool
) -> Any:
    """The pending graph of tensors (none: of this thread's device) as text, or as bytecode."""
    get = get_stablehlo_bytecode if emit_bytecode else get_stablehlo
    return get(tensors)


def _run_stablehlo(bytecode: bytes, args: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The results of a portable artifact, on the device."""
    return run_stablehlo(bytecode, args)
