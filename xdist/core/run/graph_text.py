"""Pending graphs as text, dot, HLO and StableHLO, in the form torch_xla writes them.

A graph is the rows that some slots of a tape need. Nothing here runs it.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from os.path import basename
from types import MappingProxyType
from typing import Any

from torch_xdist import settings
from torch_xdist.core.programs import program
from torch_xdist.core.programs.hlo_text import hlo_text, module_text, optimized_text
from torch_xdist.core.programs.jax_internals import proto_of_module, shardings_in_hlo
from torch_xdist.core.programs.launch import prepare
from torch_xdist.core.programs.locations import op_name
from torch_xdist.core.rows import program_words
from torch_xdist.core.sharding.tiling import Tiling
from torch_xdist.core.tapes.partial_run import copy_rows, needed_rows, post_order
from torch_xdist.core.trace.notes import Note, note_of_buffer, notes_of
from torch_xdist.core.trace.plans import Param, Plan, ScalarParam, flat
from torch_xdist.core.trace.tensor_types import TensorType
from torch_xdist.core.trace.trace import Tape, rows_of
from torch_xdist.core.trace.user_frames import told
from torch_xdist.core.trace.values import Device, hardware_name
from torch_xdist.dtypes import XLA_NAMES, to_jax, to_torch

_LABEL_LIMIT = 64
# Types of arguments whose numbers are operands, and the numbers that are constants as such.
_NUMBERS = ("number", "Optional[number]", "Tensor")
_CONSTANTS = (0, 1)


@dataclass(slots=True, eq=False)
class Node:
    """One row or leaf of a graph.

    `operands` are (node, which of its results); `attributes` print behind the operands; `note` says
    where it was recorded, if that was noted.
    """

    op: str
    shape: str
    outputs: int = 1
    operands: list[tuple["Node", int]] = field(default_factory=list)
    attributes: list[tuple[str, str]] = field(default_factory=list)
    number: int = -1
    note: Note | None = None


def shape_text(type_: TensorType | None) -> str:
    """A type as XLA prints it, as the device stores it: f32[3,4]{1,0}."""
    if type_ is None:
        return "token[]"
    element = XLA_NAMES[to_torch(to_jax(type_.dtype))]
    sizes = ",".join(map(str, type_.shape))
    layout = ",".join(str(d) for d in reversed(range(len(type_.shape))))
    return f"{element}[{sizes}]" + (f"{{{layout}}}" if type_.shape else "")


def _nodes(tape: Tape, device: Device, roots: Sequence[int]) -> list[Node]:
    """The nodes that lead to the root slots, operands before users, numbered."""
    return _nodes_and_leaves(tape, device, roots)[0]


def leaf_order(tape: Tape, device: Device, roots: Sequence[int]) -> list[int]:
    """The slots of the leaves that the roots need, in the order of the graph's text."""
    order, leaves = _nodes_and_leaves(tape, device, roots)
    return [leaves[id(node)] for node in order if id(node) in leaves]


def _nodes_and_leaves(
    tape: Tape, device: Device, roots: Sequence[int]
) -> tuple[list[Node], dict[int, int]]:
    """The nodes, and the slots of those that are leaves, by the node's id."""
    made: dict[int, tuple[Node, int]] = {}
    here = [("device", hardware_name(device.jax))]
    notes = notes_of(tape.entries)
    for slot, entry in enumerate(tape.entries):
        if isinstance(entry, TensorType):
            about = note_of_buffer(tape.buffers[slot]) or notes.get(slot)
            place = [*_told(about), *here]
            leaf = Node("xla::device_data", shape_text(entry), attributes=place, note=about)
            made[slot] = (leaf, 0)
    for start, row in rows_of(tape.entries):
        plan: Plan = row[0]
        node = Node(
            op_name(plan),
            _shapes(plan.types),
            outputs=len(plan.types),
            operands=_operands(
                plan, [made[slot] for slot in row[1:]], tape.scalars.get(start, ()), here
            ),
            attributes=_attributes(plan, notes.get(start)),
            note=notes.get(start),
        )
        for offset in range(len(plan.types)):
            made[start + offset] = (node, offset)
    ends = [made[slot][0] for slot in roots]
    order = post_order(ends, lambda node: [operand for operand, _ in node.operands])
    for number, node in enumerate(order):
        node.number = number
    for number, node in enumerate(ends):
        node.attributes = [*node.attributes, ("ROOT", str(number))]
    return order, {id(made[s][0]): s for s, e in enumerate(tape.entries) if _is_leaf(e)}


def _is_leaf(entry: Any) -> bool:
    return isinstance(entry, TensorType)


def _shapes(types: Sequence[TensorType | None]) -> str:
    if len(types) == 1:
        return shape_text(types[0])
    return f"({', '.join(map(shape_text, types))})"


def _attributes(plan: Plan, note: Note | None) -> list[tuple[str, str]]:
    """The static arguments by the schema's names; tensors and numbers are operands."""
    found = [("num_outputs", str(len(plan.types)))] if len(plan.types) > 1 else []
    pairs = [(n, v) for n, v in _arguments(plan).items() if n not in _numbers(plan)]
    return found + _told(note) + [(n, _value_text(v)) for n, v in pairs if _is_static(v)]


def _told(note: Note | None) -> list[tuple[str, str]]:
    """The user's block and line, where they were noted."""
    if note is None:
        return []
    found = [("scope", note.scope)] if note.scope else []
    for place in told(note.stack)[:1]:
        found.append(("location", f"{place.function}@{basename(place.file)}:{place.line}"))
    return found


def _arguments(plan: Plan) -> dict[str, Any]:
    names = [a.name for a in plan.op.func._schema.arguments] if plan.op else []
    return dict(zip(names, plan.args)) | plan.kwargs


def _numbers(plan: Plan) -> dict[str, Any]:
    """The arguments that torch_xla has as operands: numbers that might be tensors."""
    if plan.op is None:
        return {}
    kinds = {a.name: str(a.type) for a in plan.op.func._schema.arguments}
    given = ((n, v) for n, v in _arguments(plan).items() if kinds.get(n) in _NUMBERS)
    return {n: v for n, v in given if isinstance(v, int | float | ScalarParam)}


def _operands(
    plan: Plan,
    tensors: Sequence[tuple[Node, int]],
    scalars: Sequence[Any],
    place: list[tuple[str, str]],
) -> list[tuple[Node, int]]:
    """A row's operands with its numbers among them, in the order of the arguments."""
    numbers = _numbers(plan)
    if not numbers:
        return list(tensors)
    found: list[tuple[Node, int]] = []
    rest, fed = iter(tensors), iter(scalars)
    element = shape_text(plan.types[0]).partition("[")[0]
    for name, value in _arguments(plan).items():
        found += [next(rest) for part in flat(value) if isinstance(part, Param)]
        given = [next(fed) if isinstance(n, ScalarParam) else n for n in flat(value)]
        if name in numbers:
            is_fed = isinstance(value, ScalarParam)
            found.append((_number(element, given[0], place, is_fed=is_fed), 0))
    return [*found, *rest]


def _number(element: str, value: Any, place: list[tuple[str, str]], *, is_fed: bool) -> Node:
    # torch_xla has a number as a constant where it is one of these, else as data.
    if is_fed and value not in _CONSTANTS:
        return Node("xla::device_data", f"{element}[]", attributes=place)
    return Node("prim::Constant", f"{element}[]", attributes=[("value", _value_text(value))])


def _is_static(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_static, value))
    return value is not None and not isinstance(value, Param | ScalarParam)


def _value_text(value: Any) -> str:
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, list | tuple):
        return f"({', '.join(map(_value_text, value))})"
    return str(value).removeprefix("torch.")


def _text(nodes: Sequence[Node]) -> str:
    lines = ["IR {"]
    for node in nodes:
        operands = ", ".join(
            f"%{o.number}.{k}" if o.outputs > 1 else f"%{o.number}" for o, k in node.operands
        )
        tags = "".join(f", {name}={value}" for name, value in node.attributes)
        lines.append(f"  %{node.number} = {node.shape} {node.op}({operands}){tags}")
    return "\n".join([*lines, "}", ""])


def row_text(tape: Tape, device: Device, slot: int) -> str:
    """The row that makes a slot, as `shape op(operands)`."""
    *_, line = _text(_nodes(tape, device, [slot])).splitlines()[:-1]
    return line.partition(" = ")[2].removesuffix(", ROOT=0")


def row_title(plan: Plan) -> str:
    """A row without its operands, as torch_xla prints a node by itself."""
    return f"[] {op_name(plan)}, xla_shape={_shapes(plan.types)}, dynamic_dims: ()"


def _dot(nodes: Sequence[Node]) -> str:
    lines = ["digraph G {"]
    for node in nodes:
        parts = [node.op, node.shape, *(_shortened(n, v) for n, v in node.attributes)]
        label = "\\n".join(parts)
        lines.append(f'  node{node.number} [label="{label}"]')
    for node in reversed(nodes):
        for index, (operand, output) in enumerate(node.operands):
            label = _edge_label(node, index, operand, output)
            lines.append(f"  node{operand.number} -> node{node.number}{label}")
    return "\n".join([*lines, "}", ""])


def _shortened(name: str, value: str) -> str:
    return f"{name}={value if len(value) < _LABEL_LIMIT else value[:_LABEL_LIMIT] + '...'}"


def _edge_label(node: Node, index: int, operand: Node, output: int) -> str:
    parts = [f"i={index}"] if len(node.operands) > 1 else []
    parts += [f"o={output}"] if operand.outputs > 1 else []
    return f' [label="{",".join(parts)}"]' if parts else ""


def _lowered(
    tape: Tape, device: Device, roots: Sequence[int], tilings: Mapping[int, Tiling]
) -> Any:
    part, places = part_of(tape, device, roots)
    outs = tuple(dict.fromkeys(places[slot] for slot in roots))
    moved = {places[slot]: tiling for slot, tiling in tilings.items()}
    launch = prepare(part, device, outs, may_donate=False, tilings=moved)
    return program.lowered(launch)


def part_of(tape: Tape, device: Device, roots: Sequence[int]) -> tuple[Tape, dict[int, int]]:
    """What the root slots need as a tape of its own, and where each slot stands there.

    Its leaves stand first, in the order of the graph's text.
    """
    part = Tape()
    for slot in leaf_order(tape, device, roots):
        part.move_in(tape.entries[slot], tape.buffers[slot])  # type: ignore[arg-type]
    return part, copy_rows(tape, sorted(needed_rows(tape, roots)), part)


def render(
    tape: Tape,
    device: Device,
    roots: Sequence[int],
    format: str,
    tilings: Mapping[int, Tiling] = MappingProxyType({}),
) -> str:
    """The graph that leads to the root slots of a tape, as text, dot, hlo or stablehlo.

    Args:
        tilings: how results shall lie on the logical device, by slot.
    """
    is_noted = bool(notes_of(tape.entries))
    if format == "text":
        return _text(_nodes(tape, device, roots))
    if format == "dot":
        return _dot(_nodes(tape, device, roots))
    if format == "hlo":
        if settings.dumps_optimized():
            return optimized_text(_lowered(tape, device, roots, tilings))
        with shardings_in_hlo():
            lowered = _lowered(tape, device, roots, tilings)
            return hlo_text(lowered, in_tuple=True, with_locations=is_noted)
    if format == "stablehlo":
        return module_text(_lowered(tape, device, roots, tilings), with_locations=is_noted)
    raise RuntimeError(
        f"Invalid save graph format: {format}; use one of {', '.join(settings.GRAPH_FORMATS)}"
    )


def block(
    tape: Tape, device: Device, roots: Sequence[int], frames: Sequence[str], name: str = ""
) -> str:
    """What XLA_SAVE_TENSORS_FILE gets of a graph: where it was run, its hashes, and its text."""
    graph = render(tape, device, roots, settings.current().graph_format)
    of_roots = ", ".join(root_hashes(tape, roots))
    named = f"Graph Name: {name}\n" if name else ""
    lines = "".join(f"  {frame}\n" for frame in frames)
    return (
        f"{named}TensorsGraphInfo:\n{lines}\n"
        f"Root Hashes: ({of_roots})\n\n## BEGIN_GRAPH\n{graph}\n"
        f"Graph Hash: {program_words.fingerprint(tape.entries)}\n\n## END_GRAPH\n\n"
    )


def root_hashes(tape: Tape, roots: Sequence[int]) -> list[str]:
    """A hash of what leads to each root; like the graph's, it does not see runtime scalars."""
    found: dict[int, str] = {}
    for slot, entry in enumerate(tape.entries):
        if isinstance(entry, TensorType):
            found[slot] = repr(entry)
    for start, row in rows_of(tape.entries):
        words = [program_words.describe(row[:1]), *(found[operand] for operand in row[1:])]
        digest = hashlib.sha256("\n".join(words).encode()).hexdigest()[:32]
        for offset in range(len(row[0].types)):
            found[start + offset] = digest
    return [found[slot] for slot in roots]


def proto(
    tape: Tape,
    device: Device,
    roots: Sequence[int],
    tilings: Mapping[int, Tiling] = MappingProxyType({}),
) -> bytes:
    """The graph that leads to the root slots, as a serialized HloModuleProto."""
    with shardings_in_hlo():
        lowered = _lowered(tape, device, roots, tilings)
        is_noted = bool(notes_of(tape.entries))
        return proto_of_module(module_text(lowered, with_locations=is_noted))


def report(tape: Tape, device: Device, slot: int) -> tuple[int, str]:
    """How many nodes lead to a slot, and their text below the frames of the last one."""
    nodes = _nodes(tape, device, [slot])
    noted = [node.note for node in nodes if node.note is not None]
    frames = "".join(f"  {place}\n" for place in told(noted[-1].stack)) if noted else ""
    title = "Python Frames:\n" if frames else ""
    return len(nodes), f"{title}{frames}{_text(nodes)}"
