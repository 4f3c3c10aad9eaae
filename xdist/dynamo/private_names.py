"""The private calls of torch_xla behind its bridge: graphs by hash, device data, pending rows."""

import weakref
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch

from torch_xdist.core.alias.storage import address_of
from torch_xdist.core.devices import device, rng, transfer
from torch_xdist.core.devices.tensor import XlaTensor, wrap
from torch_xdist.core.programs.launch import live_values
from torch_xdist.core.run.device_trace import DeviceTrace, trace_of_thread
from torch_xdist.core.trace import donation
from torch_xdist.core.trace.placeholders import FORGOTTEN, Placeholder
from torch_xdist.core.trace.trace import Tape, types_of
from torch_xdist.core.trace.values import Value, root_of
from torch_xdist.dtypes import to_jax
from torch_xdist.dynamo import cached_graphs
from torch_xdist.dynamo.cached_graphs import Graph
from torch_xdist.dynamo.inputs import buffers_of_inputs, materialized
from torch_xdist.errors import DeviceError

# The value whose tensor id stands for a buffer, by the buffer's id: who asks first decides.
_known: weakref.WeakValueDictionary[int, Value] = weakref.WeakValueDictionary()
_SEED_INFO_ID = -127389


def _of_device(tensors: Sequence[torch.Tensor], of: str) -> list[XlaTensor]:
    found = [tensor for tensor in tensors if tensor.__class__ is XlaTensor]
    if len(found) < len(tensors) or not found:
        raise DeviceError(
            f"{of}: Input tensor is not an XLA tensor: {len(found)} of {len(tensors)} are on an xla"
            " device; give one or more tensors of the device"
        )
    return found


def _captured(tensors: Sequence[torch.Tensor], of: str) -> tuple[Graph, list[Any], DeviceTrace]:
    values = [tensor.value for tensor in _of_device(tensors, of)]
    trace = trace_of_thread(values[0].trace.device)
    graph, buffers, _ = cached_graphs.capture(trace, values)
    return graph, buffers, trace


def _get_graph_hash(tensors: Sequence[torch.Tensor]) -> str:
    """32 hexadecimal digits, equal for equal graphs, with the numbers that stand in them."""
    return _captured(tensors, "_get_graph_hash")[0].hash


def _xla_warm_up_cache(tensors: Sequence[torch.Tensor], devices: Sequence[str] = ()) -> None:
    """Compile the graph of the tensors for `_run_cached_graph`; nothing runs."""
    graph, buffers, _ = _captured(tensors, "_xla_warm_up_cache")
    cached_graphs.remember(graph)
    cached_graphs.warm_up(graph, buffers)


def _run_cached_graph(hash: str, graph_inputs: Sequence[torch.Tensor]) -> list[XlaTensor]:
    """Run a graph that was compiled on these inputs; the results, without inputs among them.

    Args:
        graph_inputs: in the order of `_get_tensors_xla_device_data_node`; CPU tensors are copied.
    """
    graph = cached_graphs.by_hash(hash)
    if len(graph_inputs) != len(graph.leaves):
        raise DeviceError(
            f"_run_cached_graph: the graph {hash} takes {len(graph.leaves)} inputs, not"
            f" {len(graph_inputs)}; give them as _get_tensors_xla_device_data_node lists them"
        )
    inputs = [
        x if x.__class__ is XlaTensor else transfer.to_device(x, graph.device.torch)
        for x in graph_inputs
    ]
    return cached_graphs.run(graph, buffers_of_inputs(inputs))  # type: ignore[arg-type]


def _get_tensors_xla_device_data_node(
    tensors: Sequence[torch.Tensor],
) -> tuple[list[int], list[XlaTensor]]:
    """The inputs of the graph of the tensors: their tensor ids, and tensors that hold them."""
    graph, buffers, trace = _captured(tensors, "_get_tensors_xla_device_data_node")
    types = types_of(graph.entries)
    held = []
    for slot, buffer in zip(graph.leaves, buffers):
        value = Value(types[slot], trace)
        value.buffer = buffer
        held.append(wrap(value))
    return [_xla_get_tensor_id(tensor) for tensor in held], held


def _xla_get_tensor_id(tensor: torch.Tensor) -> int:
    """A number that tensors share exactly when they share memory, or one buffer."""
    root = root_of(_of_device([tensor], "_xla_get_tensor_id")[0].value)
    known = None if root.buffer is None else _known.get(id(root.buffer))
    if known is None or known.buffer is not root.buffer:
        known = root
        if root.buffer is not None:
            _known[id(root.buffer)] = root
    elif not hasattr(root, "address"):
        # It stays so when the tensor is written.
        root.address = address_of(known)
    return address_of(root)


def _unique_id_for_ir_and_data(tensor: torch.Tensor) -> int:
    """A number that tensors share where they hold the same value: the same row's, or buffer."""
    value = _of_device([tensor], "_unique_id_for_ir_and_data")[0].value
    if value.buffer is not None:
        return id(value.buffer)
    trace = trace_of_thread(value.trace.device)
    slot = trace.slot_of(value)
    buffer = trace.tape.buffers.get(slot)
    return -1 - slot if buffer is None else id(buffer)


def _check_tensor_need_materialization(tensors: Sequence[torch.Tensor]) -> list[bool]:
    """For each tensor whether a program has to run before it has a buffer; False on the CPU."""
    return [t.__class__ is XlaTensor and t.value.buffer is None for t in tensors]  # type: ignore[attr-defined]


def _check_device_tensor_need_materialization(device_: str = "") -> list[bool]:
    """The same for the living tensors of a device, as far as this thread has pending ones."""
    here = device.device_at(device.index_of(device_ or None))
    return [True for _ in live_values(trace_of_thread(here).tape)]


def _xla_sync_multi(
    tensors: Sequence[torch.Tensor],
    devices: Sequence[str] = (),
    wait: bool = True,
    sync_xla_data: bool = True,
) -> None:
    """Compute these tensors now, and nothing else.

    Args:
        sync_xla_data: programs may write into what nobody holds any more, and into what was given
            away (`_set_buffer_donation`). Otherwise only into the latter, and only where
            `_xla_set_enable_alias_with_buffer_donor_config` says so.
    """
    given = _of_device(tensors, "_xla_sync_multi") if tensors else []
    pending = [tensor.value for tensor in given if tensor.value.buffer is None]
    rule = nullcontext() if sync_xla_data else donation.only_given(donation.CONFIG.is_on)
    with rule:
        buffers = [*materialized(pending, "sync_multi").values()]
    for buffer in buffers:
        # One that was given away may have gone to the program that was just run.
        if wait and not buffer.is_deleted():
            buffer.block_until_ready()


def _clear_pending_irs(device_: str = "") -> None:
    """Forget what this thread has recorded for a device; tensors that wait for it hold nothing."""
    trace = trace_of_thread(device.device_at(device.index_of(device_ or None)))
    with trace.lock:
        tape, trace.tape = trace.tape, Tape()
        trace.finish_writes(tape)
        for value in live_values(tape):
            type_ = value.type
            hollow = Placeholder(type_.shape, to_jax(type_.dtype), FORGOTTEN)
            value.buffer = hollow  # type: ignore[assignment]


def _replace_xla_tensor(self: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """Let a tensor be what another one is; returns it."""
    ours, theirs = _of_device([self, source], "_replace_xla_tensor")
    ours.data = theirs
    return ours


def _get_seed_info_id() -> int:
    """The tensor id of a graph's random seed. Here no graph has one: every run draws anew."""
    return _SEED_INFO_ID


def _get_base_seed_as_tensor(device_: str = "") -> torch.Tensor:
    """The state of a device's random numbers, on the device."""
    state = torch.tensor(rng.get_rng_state(device_ or None), dtype=torch.int64)
    return transfer.to_device(state, device_ or None)
