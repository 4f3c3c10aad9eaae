"""Serialized HLO modules in protobuf's text and JSON form.

Protobuf's own Python is not needed: the wire format is read by the numbers of the fields, and those
that have no name below keep their number, as protobuf prints what it does not know.

Source: https://protobuf.dev/programming-guides/encoding, and xla/service/hlo.proto of OpenXLA.
"""

import json
from collections.abc import Iterator
from typing import Any

from torch_xdist.core.trace.user_frames import is_told

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
# JSON has the numbers of 32 bits as such; its numbers are floats, so protobuf writes those of 64 as
# text.
_TEXT, _NUMBER, _NUMBERS, _SMALL = "text", "number", "numbers", "small number"
_REPEATED = {
    "computations", "instructions", "parameters", "parameter_names", "tuple_shapes",
    "tuple_shardings", "file_names", "function_names", "file_locations", "stack_frames",
}  # fmt: skip
# message -> number -> (name, what it is)
_FIELDS: dict[str, dict[int, tuple[str, str]]] = {
    "HloModule": {
        1: ("name", _TEXT), 2: ("entry_computation_name", _TEXT),
        3: ("computations", "Computation"),
        4: ("host_program_shape", "ProgramShape"), 5: ("id", _NUMBER),
        6: ("entry_computation_id", _NUMBER), 17: ("stack_frame_index", "StackFrameIndex"),
    },
    "Computation": {
        1: ("name", _TEXT), 2: ("instructions", "Instruction"),
        4: ("program_shape", "ProgramShape"), 5: ("id", _NUMBER), 6: ("root_id", _NUMBER),
    },
    "Instruction": {
        1: ("name", _TEXT), 2: ("opcode", _TEXT), 3: ("shape", "Shape"),
        7: ("metadata", "Metadata"), 8: ("literal", "Literal"), 9: ("parameter_number", _NUMBER),
        13: ("tuple_index", _NUMBER), 14: ("dimensions", _NUMBERS),
        28: ("custom_call_target", _TEXT), 35: ("id", _NUMBER), 36: ("operand_ids", _NUMBERS),
        38: ("called_computation_ids", _NUMBERS),
        40: ("sharding", "Sharding"), 63: ("comparison_direction", _TEXT),
    },
    "Shape": {
        2: ("element_type", _NUMBER), 3: ("dimensions", _NUMBERS), 4: ("tuple_shapes", "Shape"),
        5: ("layout", "Layout"), 6: ("is_dynamic_dimension", _NUMBERS),
    },
    "Layout": {1: ("minor_to_major", _NUMBERS)},
    "ProgramShape": {
        1: ("parameters", "Shape"), 2: ("result", "Shape"), 3: ("parameter_names", _TEXT),
    },
    "Metadata": {
        1: ("op_type", _TEXT), 2: ("op_name", _TEXT), 3: ("source_file", _TEXT),
        4: ("source_line", _SMALL), 15: ("stack_frame_id", _SMALL),
    },
    "StackFrameIndex": {
        1: ("file_names", _TEXT), 2: ("function_names", _TEXT),
        3: ("file_locations", "FileLocation"), 4: ("stack_frames", "StackFrame"),
    },
    "FileLocation": {
        1: ("file_name_id", _SMALL), 2: ("function_name_id", _SMALL), 3: ("line", _SMALL),
        4: ("column", _SMALL), 5: ("end_line", _SMALL), 6: ("end_column", _SMALL),
    },
    "StackFrame": {1: ("file_location_id", _SMALL), 2: ("parent_frame_id", _SMALL)},
    "Sharding": {
        1: ("type", _NUMBER), 2: ("tile_shape", "Shape"),
        3: ("tile_assignment_dimensions", _NUMBERS), 4: ("tile_assignment_devices", _NUMBERS),
        5: ("tuple_shardings", "Sharding"), 6: ("replicate_on_last_tile_dim", _NUMBER),
        9: ("iota_reshape_dims", _NUMBERS), 10: ("iota_transpose_perm", _NUMBERS),
    },
    "Literal": {1: ("shape", "Shape")},
}  # fmt: skip


def as_text(proto: bytes) -> str:
    """A serialized HLO module in protobuf's text form."""
    return "".join(_lines(proto, "HloModule", ""))


def as_json(proto: bytes) -> str:
    """A serialized HLO module in protobuf's JSON form."""
    module = _object(proto, "HloModule")
    _add_sources(module)
    return json.dumps(module)


def _add_sources(module: dict[str, Any]) -> None:
    """The file and line of each instruction, beside its stack frame, where XLA wrote that alone."""
    index = module.get("stackFrameIndex")
    if index is None:
        return
    for computation in module.get("computations", []):
        for instruction in computation.get("instructions", []):
            about = instruction.get("metadata", {})
            if "stackFrameId" in about and "sourceFile" not in about:
                about["sourceFile"], about["sourceLine"] = _source(index, about["stackFrameId"])


def _source(index: dict[str, Any], number: int) -> tuple[str, int]:
    """The file and the line of a frame; of one above it where it is none that says something."""
    file, line = "", 0
    while number:
        frame = index["stackFrames"][number - 1]
        place = index["fileLocations"][frame["fileLocationId"] - 1]
        file, line = index["fileNames"][place["fileNameId"] - 1], place["line"]
        if is_told(file):
            break
        number = frame.get("parentFrameId", 0)
    return file, line


def _lines(data: bytes, message: str, indent: str) -> Iterator[str]:
    for name, kind, value in _fields(data, message):
        if kind in _FIELDS:
            yield f"{indent}{name} {{\n"
            yield from _lines(value, kind, indent + "  ")
            yield f"{indent}}}\n"
        else:
            yield f"{indent}{name}: {json.dumps(value)}\n"


def _object(data: bytes, message: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    known = {name for name, _ in _FIELDS[message].values()}
    for name, kind, value in _fields(data, message):
        if name not in known:
            continue
        first, *rest = name.split("_")
        key = first + "".join(part.capitalize() for part in rest)
        if kind in _FIELDS:
            shown: Any = _object(value, kind)
        else:
            shown = value if kind == _SMALL else str(value)
        if kind == _NUMBERS or name in _REPEATED:
            found.setdefault(key, []).append(shown)
        else:
            found[key] = shown
    return found


def _fields(data: bytes, message: str) -> Iterator[tuple[str, str, Any]]:
    """The name, the kind and the value of each field; one for each of packed numbers."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, wire = tag >> 3, tag & 7
        name, kind = _FIELDS[message].get(number, (str(number), ""))
        if wire == _VARINT:
            value, at = _varint(data, at)
            yield name, kind, value
        elif wire == _BYTES:
            size, at = _varint(data, at)
            part, at = data[at : at + size], at + size
            yield from _of_bytes(name, kind, part)
        else:
            size = 8 if wire == _FIXED64 else 4
            yield name, kind, int.from_bytes(data[at : at + size], "little")
            at += size


def _of_bytes(name: str, kind: str, part: bytes) -> Iterator[tuple[str, str, Any]]:
    if kind == _NUMBERS:
        at = 0
        while at < len(part):
            value, at = _varint(part, at)
            yield name, kind, value
    elif kind in _FIELDS:
        yield name, kind, part
    else:
        yield name, kind, part.decode("utf-8", "backslashreplace")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number in groups of seven bits, and where the next field begins."""
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
        shift += 7
