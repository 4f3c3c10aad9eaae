"""`xm.get_stablehlo`: the pending graphs of tensors as StableHLO; nothing of them runs."""

from collections.abc import Sequence

import numpy as np
import torch

from torch_xdist.core.devices import device
from torch_xdist.core.programs.launch import live_values
from torch_xdist.core.run.device_trace import DeviceTrace, trace_of_thread
from torch_xdist.core.run.graph_text import render
from torch_xdist.core.trace.operators import let_numbers_be_constants
from torch_xdist.export import dynamic
from torch_xdist.export.graph import Graph
from torch_xdist.export.lower import Lowered, lower
from torch_xdist.export.modules import bytecode_of
from torch_xdist.torch_xla_compat import graphs

_inline_numbers = False


def set_all_numbers_special_scalars(value: bool) -> None:
    """Let every Python number be a constant: of the StableHLO of a graph, and of its program.

    Of StableHLO at once, of programs in operators recorded from now on.
    """
    global _inline_numbers
    _inline_numbers = bool(value)
    let_numbers_be_constants(_inline_numbers)


def all_numbers_special_scalars() -> bool:
    """Whether every Python number is a constant."""
    return _inline_numbers


def get_stablehlo(tensors: Sequence[torch.Tensor] | None = None) -> str:
    """The pending graph of the tensors (default: of this thread's device) as StableHLO text.

    A function of the tensors it reads. XLA_HLO_DEBUG=1 adds where each operation comes from.
    """
    trace, roots = _wanted(tensors)
    if _is_job_wide(trace):
        return _program_text(trace, roots, tensors)
    return _lowered(trace, roots).text


def get_stablehlo_bytecode(tensors: Sequence[torch.Tensor] | None = None) -> bytes:
    """`get_stablehlo` as a portable artifact of StableHLO, which later releases still read."""
    trace, roots = _wanted(tensors)
    if _is_job_wide(trace):
        return bytecode_of(_program_text(trace, roots, tensors))
    return _lowered(trace, roots).bytecode


def _wanted(tensors: Sequence[torch.Tensor] | None) -> tuple[DeviceTrace, list[int]]:
    if tensors:
        return graphs.trace_and_roots(tensors)
    trace = trace_of_thread(device.device_at(device.default_index()))
    return trace, [value.slot for value in live_values(trace.tape)]


def _is_job_wide(trace: DeviceTrace) -> bool:
    """Whether the graph is one of several devices, whose program only makes sense as a whole."""
    return trace.device.layout is not None or bool(trace.tape.collectives)


def _program_text(
    trace: DeviceTrace, roots: Sequence[int], tensors: Sequence[torch.Tensor] | None
) -> str:
    if tensors:
        return graphs.stablehlo_of(tensors)
    return render(trace.tape, trace.device, roots, "stablehlo")


def _lowered(trace: DeviceTrace, roots: Sequence[int]) -> Lowered:
    buffers = trace.tape.buffers
    graph = Graph(
        trace.tape,
        roots,
        inline_numbers=_inline_numbers,
        value_of=lambda slot: np.asarray(buffers[slot]),
    )
    symbols: list[dict[int, str]] = []
    for place, slot in enumerate(graph.leaves):
        marked = dynamic.marked_dims(buffers[slot])
        symbols.append({dim: f"d{place}_{dim}" for dim in marked})
    return lower(graph, symbols, trace.device.jax)
