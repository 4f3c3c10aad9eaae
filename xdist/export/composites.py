"""Regions of a graph between marks, which become `stablehlo.composite`.

`torch.ops.xla.mark_tensor` marks a tensor as the input or output number `pos` of the region `id` of
a name. On the device a mark is a row that returns its operand.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from torch_xdist.core.trace.trace import Row
from torch_xdist.errors import ArgumentError
from torch_xdist.ops.table import lowers

_NAME = re.compile(r"[a-zA-Z]\w*(\.[\w$]+)+", re.ASCII)
OPERATOR = "xla.mark_tensor.default"


@lowers(OPERATOR)
def _row(x: jax.Array, name: str, pos: int, id: str, is_input: bool, attr: Any = None) -> jax.Array:
    return x


@dataclass(frozen=True, slots=True)
class Mark:
    """One mark of a region."""

    slot: int
    pos: int
    is_input: bool
    attributes: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Composite:
    """A region.

    Attributes:
        operands: the slots it reads: the marked ones in their order, then leaves it reads besides.
        outputs: the slots of the marks of its results, in their order.
    """

    name: str
    operands: list[int]
    outputs: list[int]
    attributes: dict[str, Any]


def composites_of(rows: Mapping[int, Row]) -> dict[int, Composite]:
    """The regions among the rows of a graph, by the slot of their first output."""
    marks: dict[tuple[str, str], list[Mark]] = {}
    for slot, row in sorted(rows.items()):
        if row[0].name == OPERATOR:
            name, id, mark = _mark(slot, row)
            marks.setdefault((name, id), []).append(mark)
    found = {}
    for (name, id), of_region in marks.items():
        composite = _composite(name, id, of_region, rows)
        if composite is not None:
            found[composite.outputs[0]] = composite
    return found


def _mark(slot: int, row: Row) -> tuple[str, str, Mark]:
    names = ("name", "pos", "id", "is_input", "attr")
    given = dict(zip(names, row[0].args[1:])) | row[0].kwargs
    attributes = dict(given.get("attr") or ())
    mark = Mark(slot, given["pos"], given["is_input"], attributes)
    return given["name"], given["id"], mark


def _composite(name: str, id: str, marks: list[Mark], rows: Mapping[int, Row]) -> Composite | None:
    outputs = sorted((m for m in marks if not m.is_input), key=lambda mark: mark.pos)
    if not outputs:
        return None
    places = [mark.pos for mark in outputs]
    if places != [*range(len(outputs))]:
        raise ArgumentError(
            f"composite {name!r} (id {id!r}): its outputs are marked at positions {places}; mark"
            f" each of 0 to {max(len(outputs) - 1, *places)} once"
        )
    if _NAME.fullmatch(name) is None:
        raise ArgumentError(
            f"composite {name!r}: StableHLO wants a namespace and a name, such as my_library.op"
        )
    reached = _reached([mark.slot for mark in outputs], {m.slot for m in marks if m.is_input}, rows)
    position = {mark.slot: mark.pos for mark in marks if mark.is_input}
    operands = sorted(reached, key=lambda slot: (slot not in position, position.get(slot, slot)))
    attributes = {key: _attribute(value) for key, value in outputs[0].attributes.items()}
    return Composite(name, operands, [mark.slot for mark in outputs], attributes)


def _reached(outputs: list[int], inputs: set[int], rows: Mapping[int, Row]) -> set[int]:
    """The marks of inputs, and the leaves, that are met on the way from the outputs."""
    first = {place: slot for slot, row in rows.items() for place in _places(slot, row)}
    found: set[int] = set()
    seen: set[int] = set()
    waiting = list(outputs)
    while waiting:
        slot = waiting.pop()
        slot = first.get(slot, slot)
        if slot in seen:
            continue
        seen.add(slot)
        if slot in inputs or slot not in rows:
            found.add(slot)
        else:
            waiting.extend(rows[slot][1:])
    return found


def _places(slot: int, row: Row) -> range:
    return range(slot, slot + max(1, len(row[0].types)))


def _attribute(value: Any) -> Any:
    """An attribute as JAX makes MLIR's of it: floats have 32 bits, lists are dense tensors."""
    if isinstance(value, list | tuple):
        dtype = {float: np.float32, int: np.int64, bool: np.bool_}[type(value[0])]
        return np.array(value, dtype)
    return np.float32(value) if isinstance(value, float) else value
