"""Programs as HLO text as torch_xla prints it: %add.1 = f32[2]{0} add(f32[2]{0} %p0.1, ...)."""

import re
from typing import Any

import numpy as np

from torch_xdist.core.programs.jax_internals import compiled, hlo_of_module

# What Shardy notes beside the shardings that HLO has itself.
_BRACES = r"\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\}"
_SHARDY = re.compile(
    r',? ?frontend_attributes=\{xla\.sdy\.(?:[^{}"]|"(?:[^"\\]|\\.)*"|' + _BRACES + r")*\}"
)
_ARGUMENT = re.compile(r"\bArg_(\d+)\.\d+")
# Tables before the computations: 1 "train.py"; 2 {file_name_id=1 ... line=7 ...};
# 3 {file_location_id=2 parent_frame_id=1}. And what an operation has.
_FILE_NAME = re.compile(r'^(\d+) "(.*)"$', re.MULTILINE)
_FILE_LOCATION = re.compile(r"^(\d+) \{file_name_id=(\d+)[^}\n]*?\bline=(\d+)", re.MULTILINE)
_STACK_FRAME = re.compile(r"^(\d+) \{file_location_id=(\d+)", re.MULTILINE)
_FRAME_ID = re.compile(r"\bstack_frame_id=(\d+)")
# [tiles]<=[dims]T(order): the devices in a short form.
_IOTA = re.compile(r"devices=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")


def module_text(lowered: Any, *, with_locations: bool = False) -> str:
    """What JAX lowered, as StableHLO; with its locations where they are the user's."""
    # Otherwise without: by JAX's own ones XLA would name the instructions.
    return str(lowered.as_text(debug_info=with_locations))


def optimized_text(lowered: Any) -> str:
    """What JAX lowered, as XLA compiled it, collectives included."""
    return _devices_listed(_with_sources(str(compiled(lowered).as_text())))


def hlo_text(lowered: Any, *, in_tuple: bool = False, with_locations: bool = False) -> str:
    """What JAX lowered, as HLO before XLA's work.

    Args:
        in_tuple: one result is a tuple too.
        with_locations: operations say where they were recorded.
    """
    module = module_text(lowered, with_locations=with_locations)
    text = hlo_of_module(module, in_tuple=in_tuple, with_metadata=with_locations)
    if text is None:
        return str(lowered.compiler_ir("hlo").as_hlo_text())
    text = _with_sources(_ARGUMENT.sub(r"p\1.1", _SHARDY.sub("", text)))
    return _devices_listed(text)


def _with_sources(text: str) -> str:
    """The text with the file and line of each operation beside the number of its stack frame."""
    files = {m[1]: m[2] for m in _FILE_NAME.finditer(_table(text, "FileNames"))}
    places = {
        m[1]: f'source_file="{files.get(m[2], "")}" source_line={m[3]} '
        for m in _FILE_LOCATION.finditer(_table(text, "FileLocations"))
    }
    frames = {m[1]: m[2] for m in _STACK_FRAME.finditer(_table(text, "StackFrames"))}
    if not frames:
        return text
    return _FRAME_ID.sub(lambda m: places.get(frames.get(m[1], ""), "") + m[0], text)


def _table(text: str, title: str) -> str:
    """The lines below a title, up to the next empty one."""
    return text.partition(f"\n{title}\n")[2].partition("\n\n")[0]


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
