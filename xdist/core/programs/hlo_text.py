"""Programs as HLO text as torch_xla prints it: %add.1 = f32[2]{0} add(f32[2]{0} %p0.1, ...)."""

import re
from typing import Any

import numpy as np

from torch_xdist.core.programs.jax_internals import hlo_of_module

# What Shardy notes beside the shardings that HLO has itself.
_BRACES = r"\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\}"
_SHARDY = re.compile(
    r',? ?frontend_attributes=\{xla\.sdy\.(?:[^{}"]|"(?:[^"\\]|\\.)*"|' + _BRACES + r")*\}"
)
_ARGUMENT = re.compile(r"\bArg_(\d+)\.\d+")
# [tiles]<=[dims]T(order): the devices in a short form.
_IOTA = re.compile(r"devices=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")


def optimized_text(lowered: Any) -> str:
    """What JAX lowered, as XLA compiled it, collectives included."""
    return _devices_listed(lowered.compile().as_text())


def hlo_text(lowered: Any, *, in_tuple: bool = False) -> str:
    """What JAX lowered, as HLO before XLA's work; `in_tuple` makes one result a tuple too."""
    # Without locations, by which JAX would name the instructions.
    text = hlo_of_module(str(lowered.compiler_ir("stablehlo")), in_tuple=in_tuple)
    if text is None:
        return str(lowered.compiler_ir("hlo").as_hlo_text())
    return _devices_listed(_ARGUMENT.sub(r"p\1.1", _SHARDY.sub("", text)))


def _devices_listed(text: str) -> str:
    """The text with every device of a sharding by its number."""
    return _IOTA.sub(_listed, text)


def _listed(found: "re.Match[str]") -> str:
    tiles, dims, order = found.groups()
    shape = [int(size) for size in dims.split(",")]
    grid = np.arange(np.prod(shape)).reshape(shape)
    if order is not None:
        grid = grid.transpose([int(axis) for axis in order.split(",")])
    return f"devices=[{tiles}]{','.join(map(str, grid.ravel()))}"
