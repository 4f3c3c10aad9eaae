"""Where rows were recorded, by torch_xla's private names; see `core/trace/notes.py`."""

import copy
import gc
from collections.abc import Iterator

import torch

from torch_xdist.core.devices.device import device_at, index_of
from torch_xdist.core.devices.tensor import XlaTensor
from torch_xdist.core.run.device_trace import HERE, trace_of_thread
from torch_xdist.core.run.graph_text import report, shape_text
from torch_xdist.core.tapes.partial_run import needed_rows
from torch_xdist.core.trace import notes
from torch_xdist.core.trace.trace import Tape, Trace
from torch_xdist.core.trace.values import Value, hardware_name


def _get_ir_debug() -> bool:
    """Whether rows know where they are recorded."""
    return notes.is_noting()


def _set_ir_debug(ir_debug: bool) -> None:
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


def _set_xla_custom_op_name_prefix(
    input: torch.Tensor, op_name_prefix: str, max_call_stack_depth: int
) -> bool:
    """Give the row of a tensor, and those before it without one, a prefix in HLO's metadata.

    For rows that were noted, see `_set_ir_debug`.

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


def _xla_tensors_report(nodes_threshold: int = 100, device: str = "") -> str:
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
