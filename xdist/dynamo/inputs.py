"""The inputs of a captured graph: their buffers at a call, and stand-ins while it is recorded."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax

from torch_xdist import metrics
from torch_xdist.core.devices.tensor import XlaTensor
from torch_xdist.core.run import analysis
from torch_xdist.core.run.device_trace import HERE, DeviceTrace, trace_of_thread
from torch_xdist.core.sharding.arrays import HostArray, Parts
from torch_xdist.core.trace.trace import Tape
from torch_xdist.core.trace.values import Device, Value, root_of
from torch_xdist.dynamo import config
from torch_xdist.errors import CutError
from torch_xdist.training import eager


def is_pending(value: Value) -> bool:
    """Whether a program has to run before a value has a buffer."""
    return value.buffer is None


def buffers_of_inputs(inputs: Sequence[XlaTensor]) -> list[Any]:
    """The buffer of each tensor; what is pending runs first, by itself.

    Raises CutError where something is pending and `config` says that nothing is.
    """
    values = [tensor.value for tensor in inputs]
    pending = [value for value in values if is_pending(value)]
    if not pending:
        return [value.buffer for value in values]
    if config.skip_input_data_check:
        raise CutError(
            "dynamo: input data to dynamo graph can not be a pending ir, and"
            f" {len(pending)} of {len(values)} inputs are; call torch_xla.sync() first, or set"
            " torch_xla._dynamo.config.skip_input_data_check to False"
        )
    metrics.count("DynamoSyncInputExecuteTime")
    return _buffers(values)


def _buffers(values: Sequence[Value]) -> list[Any]:
    """The buffer of each value, whatever `config` says of those that are pending."""
    pending = [value for value in values if is_pending(value)]
    found = materialized(pending, analysis.DYNAMO_INPUTS)
    return [value.buffer if not is_pending(value) else found[id(value)] for value in values]


def materialized(values: Sequence[Value], reason: str) -> dict[int, Any]:
    """The buffers of pending values, by their id; nothing else runs."""
    found: dict[int, Any] = {}
    by_trace: dict[DeviceTrace, list[Value]] = {}
    for value in values:
        trace = trace_of_thread(value.trace.device)
        if root_of(value).trace is trace:
            by_trace.setdefault(trace, []).append(value)
        else:
            # Another thread's: it is moved over.
            root_of(value).trace.fetch(root_of(value))
            by_trace.setdefault(trace, []).append(value)
    for trace, mine in by_trace.items():
        found.update(zip(map(id, mine), trace.run_only(mine, reason)))
    return found


@contextmanager
def own_trace(device: Device) -> Iterator[DeviceTrace]:
    """What this thread records for a device in the block goes onto a trace of its own.

    Random rows draw what is drawn again after it.
    """
    usual, before, state = trace_of_thread(device), HERE.trace, device.random.state
    trace = HERE.by_device[device] = HERE.trace = DeviceTrace(device)
    eager.defer()
    try:
        yield trace
    finally:
        eager.undefer()
        HERE.by_device[device], HERE.trace = usual, before
        device.random.state = state
        # A tape lists values that know their trace, and would keep the inputs' buffers until
        # Python collects garbage: the step's program could not overwrite them.
        trace.tape = Tape()


@contextmanager
def stand_ins(inputs: Sequence[XlaTensor]) -> Iterator[list[Value]]:
    """In the block, tensors have values of their own: what is written there, nobody else sees.

    Tensors that have one value have one stand-in. No two stand-ins have the same buffer.
    """
    originals = [tensor.value for tensor in inputs]
    buffers = _buffers(originals)
    made: dict[int, Value] = {}
    used: set[int] = set()
    for value, buffer in zip(originals, buffers):
        if id(value) not in made:
            copy = made[id(value)] = Value(value.type, value.trace)
            copy.buffer = _distinct(buffer) if id(buffer) in used else buffer
            used.add(id(buffer))
            if getattr(value, "tiling", None) is not None:
                copy.tiling = value.tiling
    for tensor, value in zip(inputs, originals):
        tensor.value = made[id(value)]
    try:
        yield [made[id(value)] for value in originals]
    finally:
        for tensor, value in zip(inputs, originals):
            tensor.value = value


def _distinct(buffer: Any) -> Any:
    """Another array of the same memory."""
    if isinstance(buffer, HostArray):
        return HostArray(buffer.array)
    if isinstance(buffer, Parts):
        return Parts(buffer.array)
    pieces = [shard.data for shard in buffer.addressable_shards]
    return jax.make_array_from_single_device_arrays(buffer.shape, buffer.sharding, pieces)
