"""The pending graphs of tensors, by torch_xla's names; `core/run/graph_text.py` writes them.

Nothing here runs a graph: asking for the text of a tensor leaves it pending.
"""

import copy
import gc
import itertools
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch

from torch_xdist import settings
from torch_xdist.core.devices.device import device_at, index_of
from torch_xdist.core.devices.tensor import XlaTensor
from torch_xdist.core.run.device_trace import HERE, DeviceTrace, trace_of_thread
from torch_xdist.core.run.graph_text import proto, render, report, shape_text
from torch_xdist.core.run.partial_run import needed_rows
from torch_xdist.core.sharding.tiling import Tiling
from torch_xdist.core.trace import notes
from torch_xdist.core.trace.trace import Tape, Trace
from torch_xdist.core.trace.values import Value, hardware_name
from torch_xdist.errors import DeviceError

_numbers = itertools.count()


def trace_and_roots(tensors: Sequence[torch.Tensor]) -> tuple[DeviceTrace, list[int]]:
    """Where the tensors are pending in this thread, and their slots there."""
    for tensor in tensors:
        if not isinstance(tensor, XlaTensor):
            raise DeviceError(
                f"graph: Input tensor is not an XLA tensor: {tensor.type()}; move it to an xla"
                " device"
            )
    values = [tensor.value for tensor in tensors]  # type: ignore[attr-defined]
    devices = {value.trace.device for value in values}
    if len(devices) != 1:
        raise DeviceError(
            f"graph: {len(tensors)} tensors of {len(devices)} devices; give one or more tensors of"
            " one device"
        )
    trace = trace_of_thread(values[0].trace.device)
    return trace, [trace.slot_of(value) for value in values]


def _graph(tensors: Sequence[torch.Tensor], format: str) -> str:
    trace, roots = trace_and_roots(tensors)
    return render(trace.tape, trace.device, roots, format, _tilings(tensors, roots))


def _tilings(tensors: Sequence[torch.Tensor], roots: Sequence[int]) -> Mapping[int, Tiling]:
    """How the user wants the tensors to lie, by slot."""
    said = {slot: getattr(t.value, "tiling", None) for slot, t in zip(roots, tensors)}  # type: ignore[attr-defined]
    return {slot: tiling for slot, tiling in said.items() if tiling is not None}


def text_of(tensors: Sequence[torch.Tensor]) -> str:
    """The pending graph of the tensors as lines `%N = shape op(operands), tag=value`."""
    return _graph(tensors, "text")


def dot_of(tensors: Sequence[torch.Tensor]) -> str:
    """The pending graph of the tensors for Graphviz."""
    return _graph(tensors, "dot")


def hlo_of(tensors: Sequence[torch.Tensor]) -> str:
    """The pending graph of the tensors as XLA's HLO text."""
    return _graph(tensors, "hlo")


def hlo_proto_of(tensors: Sequence[torch.Tensor]) -> bytes:
    """The pending graph of the tensors as a serialized HloModuleProto."""
    trace, roots = trace_and_roots(tensors)
    return proto(trace.tape, trace.device, roots, _tilings(tensors, roots))


def stablehlo_of(tensors: Sequence[torch.Tensor]) -> str:
    """The program that would compute the tensors, as StableHLO text."""
    return _graph(tensors, "stablehlo")


def save_tensors_graph(
    save_dir: str | os.PathLike[str], name: str, tensors: Sequence[torch.Tensor]
) -> None:
    """Write the pending graph into `save_dir/{name}-{thread}-{number}.{format}`.

    The format is SAVE_GRAPH_FMT: text (the default), dot or hlo.
    """
    format = settings.getenv_as("SAVE_GRAPH_FMT", str, "text")
    graph = _graph(tensors, format)
    file = f"{name}-{threading.get_ident()}-{next(_numbers)}.{format}"
    Path(save_dir, file).write_text(graph)


def set_ir_debug(ir_debug: bool) -> None:
    """Whether rows know from now on where they are recorded, as with XLA_IR_DEBUG=1."""
    notes.set_noting(ir_debug)
    if ir_debug:
        traces: list[Trace] = [*HERE.by_device.values()]
        for trace in traces if HERE.symbolic is None else [*traces, HERE.symbolic]:
            if not isinstance(trace.tape.entries, notes.NotedEntries):
                # As another object: whoever is recording sees it, and records anew.
                noted = copy.copy(trace.tape)
                noted.entries = notes.NotedEntries(noted.entries)
                trace.tape = noted


def set_custom_op_name_prefix(
    input: torch.Tensor, op_name_prefix: str, max_call_stack_depth: int
) -> bool:
    """Give the row of a tensor, and those before it without one, a prefix in HLO's metadata.

    For rows that were noted, see `set_ir_debug`.

    Args:
        max_call_stack_depth: how many of the outermost frames the metadata has; 0 for none.

    Returns whether this is a device tensor.
    """
    if not isinstance(input, XlaTensor):
        return False
    trace = trace_of_thread(input.value.trace.device)
    entries = trace.tape.entries
    if notes.notes_of(entries):
        needed = needed_rows(trace.tape, [trace.slot_of(input.value)])
        notes.set_prefix(entries, needed, op_name_prefix, int(max_call_stack_depth))
    return True


def tensors_report(nodes_threshold: int = 100, device: str = "") -> str:
    """The pending graphs of more than so many nodes, each with the living tensor it makes.

    Args:
        device: whose tensors; "" for all.
    """
    there = device_at(index_of(device)) if device else None
    parts = []
    for tensor, tape, slot in _pending():
        value = tensor.value
        if there is None or value.trace.device is there:
            nodes, text = report(tape, value.trace.device, slot)
            if nodes > nodes_threshold:
                parts.append(
                    f"Tensor: id={id(tensor)}, shape={shape_text(value.type)},"
                    f" device={hardware_name(value.trace.device.jax)}, ir_nodes={nodes}\n{text}\n\n"
                )
    return "".join(parts)


def _pending() -> Iterator[tuple[XlaTensor, Tape, int]]:
    """The living tensors that are pending, or whose buffer is known to be new."""
    for tensor in gc.get_objects():
        # Some objects do something when they are asked for an attribute.
        if type(tensor) is not XlaTensor or not hasattr(tensor, "value"):
            continue
        value: Value = tensor.value
        tape = value.trace.tape
        if value.buffer is None and value.epoch == tape.epoch:
            yield tensor, tape, value.slot
        elif value.buffer is not None and notes.note_of_buffer(value.buffer) is not None:
            alone = Tape()
            yield tensor, alone, alone.enter(value.type, value.buffer)
