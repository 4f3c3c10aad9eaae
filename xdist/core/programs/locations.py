"""Where rows were recorded, told to XLA: the metadata of a program's operations.

While a row with a note is lowered, JAX is in a scope that holds its slot. The lowered module is
then gone through once, and the location of each operation in such a scope becomes the row's:
operator, block and frames, which XLA hands to profiles and to HLO. Without notes nothing is done.
"""

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax

from torch_xdist.core.programs.jax_internals import Location, relocate
from torch_xdist.core.trace.notes import notes_of
from torch_xdist.core.trace.plans import Plan
from torch_xdist.core.trace.trace import Entry, rows_of
from torch_xdist.ops import naming

_ROW = re.compile(r"<row (\d+)>")
_INNER = re.compile(r"<inner (\d+)>")
# Of the rows of functions: JAX keeps what it traced, with the numbers, for later programs.
_numbers: dict[Location, int] = {}
_made: list[Location] = []
_NOWHERE = contextlib.nullcontext()
# What torch_xla calls the operators that are one to it.
_ONE_OF = {"t": "permute", "transpose": "permute"}
# The scope in which JAX shall lower the row of a slot.
Scope = Callable[[int], contextlib.AbstractContextManager[Any]]


def op_name(plan: Plan) -> str:
    """The operator of a row as torch_xla names it, such as aten::add."""
    if plan.name.startswith("aten."):
        name = plan.name.split(".")[1]
        return f"aten::{_ONE_OF.get(name, name)}"
    if plan.op is not None:
        # torch.ops.NAMESPACE.NAME.OVERLOAD, of a library or of the user's.
        return "::".join(plan.name.split(".")[:2])
    if plan.name.startswith("from_jax."):
        return "xla::jax_func"
    return "xla::" + plan.name.removeprefix("xla::").split(".")[-1]


def locations_of(entries: Sequence[Entry]) -> dict[int, Location]:
    """Where the rows of a tape were recorded, by slot; empty where that was not noted."""
    notes = notes_of(entries)
    if not notes:
        return {}
    found = {}
    for slot, row in rows_of(entries):
        note = notes.get(slot)
        if note is not None:
            op = op_name(row[0]).replace(":", "_")
            found[slot] = Location(op, note.name(op), note.places)
    return found


def no_scope(slot: int) -> contextlib.AbstractContextManager[Any]:
    """For rows without notes."""
    return _NOWHERE


@contextlib.contextmanager
def row_scope(slot: int) -> Iterator[None]:
    """For rows whose operations shall be found again by `located`."""
    with jax.named_scope(f"<row {slot}>"), naming.asked():
        yield


def inner_scope(entries: Sequence[Entry]) -> Scope:
    """For the rows of a function inside a row; those without a note are told as that row."""
    found = locations_of(entries) if naming.is_asked() else {}

    def scope(slot: int) -> contextlib.AbstractContextManager[Any]:
        if slot not in found:
            return _NOWHERE
        return jax.named_scope(f"<inner {_number_of(found[slot])}>")

    return scope if found else no_scope


def _number_of(location: Location) -> int:
    number = _numbers.get(location)
    if number is None:
        number = _numbers[location] = len(_made)
        _made.append(location)
    return number


def located(lowered: Any, locations: Mapping[int, Location]) -> Any:
    """What JAX lowered, its operations at the locations of their rows."""
    if locations:
        relocate(lowered, lambda name: _of_name(name, locations))
    return lowered


def _of_name(name: str, locations: Mapping[int, Location]) -> Location | None:
    row, inner = _ROW.search(name), _INNER.findall(name)
    found = locations.get(int(row[1])) if row else None
    if inner:
        # Also without a row: what JAX calls as a function is named for itself.
        found = _made[int(inner[-1])]
    part = naming.part_of(name)
    if found is None or part is None:
        return found
    return Location(part, found.name.removesuffix(found.type) + part, found.places)
