"""The pending graphs of tensors, by torch_xla's names; `core/run/graph_text.py` writes them.

Nothing here runs a graph: asking for the text of a tensor leaves it pending.
"""

import itertools
import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from torch_xdist import settings
from torch_xdist.core.devices.tensor import XlaTensor
from torch_xdist.core.run.device_trace import DeviceTrace, trace_of_thread
from torch_xdist.core.run.graph_text import proto, render
from torch_xdist.core.sharding.tiling import Tiling
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
