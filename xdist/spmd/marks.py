"""Marks: how a tensor is sharded, as the user says it and as it is."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import torch

from torch_xdist import metrics
from torch_xdist.core.alias.views import write
from torch_xdist.core.devices import device
from torch_xdist.core.devices.tensor import XlaTensor, wrap
from torch_xdist.core.devices.transfer import as_numpy
from torch_xdist.core.programs.manual_region import FULL_TO_SHARD, SHARD_TO_FULL
from torch_xdist.core.programs.sharded_program import MARK
from torch_xdist.core.record.jax_ops import record_jax
from torch_xdist.core.run import manual_values
from torch_xdist.core.run.device_trace import buffer_of, trace_here
from torch_xdist.core.sharding import gather
from torch_xdist.core.sharding.arrays import HostArray, Parts, by_hand
from torch_xdist.core.sharding.layout import Buffer, Layout
from torch_xdist.core.sharding.tiling import MANUAL, Tiling, replicated
from torch_xdist.core.trace.plans import Plan
from torch_xdist.core.trace.tensor_types import dense_type
from torch_xdist.core.trace.values import Value
from torch_xdist.errors import ShardingError
from torch_xdist.spmd.mesh import Mesh, PartitionSpec

# Operators whose result lies as their operand does.
_COPIES = ("aten.clone.default", "aten.alias.default")
# How the result of a row lies, by the name of its plan, where the row says it.
SAID_BY: dict[str, Callable[[Plan], Tiling]] = {
    MARK: lambda plan: plan.args[-1],
    FULL_TO_SHARD: lambda plan: MANUAL,
    SHARD_TO_FULL: lambda plan: plan.args[-1][0],
}


def layout(of: str) -> Layout:
    """The devices of SPMD mode. Raises ShardingError outside of it."""
    found = device.layout()
    if found is None:
        raise ShardingError(
            f"{of}: xla:0 is one device of {device.device_count()}; call"
            " torch_xla.runtime.use_spmd() first, which makes it stand for all"
        )
    return found


def tiling_over(mesh: Mesh, spec: PartitionSpec, of: str) -> Tiling:
    """What a spec means; the first mesh says in which order programs take the devices."""
    here = layout(of)
    found = mesh.tiling(spec)
    here.follow(mesh.get_logical_mesh())
    return found


def unwrapped(value: Any) -> Any:
    """The device tensor of an XLAShardedTensor; anything else as it is."""
    return getattr(value, "global_tensor", value)


def on_device(tensor: Any, of: str) -> XlaTensor:
    """The tensor, which must be on the device. Raises ShardingError where it is not."""
    if tensor.__class__ is not XlaTensor:
        raise ShardingError(
            f"{of}: Input tensor is not an XLA tensor: it is a {type(tensor).__name__} on"
            f" {tensor.device}; move it with .to('xla') first"
        )
    return tensor


def mark(tensor: XlaTensor, tiling: Tiling, *, of: str = "mark_sharding") -> None:
    """Shard a tensor in place, now if it has a buffer, else by the program that computes it.

    What is written to it later stays sharded so. Raises ShardingError where it is sharded in
    another way already.
    """
    here = layout(of)
    metrics.count("XlaMarkSharding")
    value = tensor.value
    said = getattr(value, "tiling", None)
    if said is not None and said != tiling and not said.is_replicated:
        raise ShardingError(
            f"{of}: the tensor of shape {list(tensor.shape)} is sharded as {said.text} already,"
            f" not as {tiling.text}; call xs.clear_sharding first"
        )
    _check_whole(tensor, of)
    metrics.count("VirtualDeviceUsage")
    if value.parent is None and value.buffer is not None and not trace_of(value).is_symbolic:
        _move(value, here, tiling)
    else:
        write(value, constrained(tensor, tiling).value)
    if value.parent is None:
        value.tiling = tiling
        metrics.count("SetShardingSpec")


def annotate(tensor: XlaTensor, tiling: Tiling) -> None:
    """Shard a tensor in another way from here on, in the program, also where it is sharded."""
    _check_whole(tensor, "annotate_custom_sharding")
    metrics.count("XlaAnnotateCustomSharding")
    write(tensor.value, constrained(tensor, tiling).value)
    if tensor.value.parent is None:
        tensor.value.tiling = tiling


def trace_of(value: Value) -> Any:
    """Where this thread records for a value's device."""
    return trace_here(value.trace.device)


def _move(value: Value, here: Layout, tiling: Tiling) -> None:
    """Lay the buffer of a root anew, also for the rows that are about to read it."""
    old = value.buffer
    new = here.resharded(old, value.type.shape, tiling)  # type: ignore[arg-type]
    tape = trace_of(value).tape
    if value.epoch == tape.epoch and tape.buffers.get(value.slot) is old:
        tape.buffers[value.slot] = new
    value.buffer = new


def constrained(tensor: XlaTensor, tiling: Tiling) -> XlaTensor:
    """A tensor of the same values, which the program shards so where it computes it."""
    here = layout("mark_sharding")

    def constrain(x: jax.Array) -> jax.Array:
        # Asked for late: the first mesh may lay the devices in another order until then.
        return jax.lax.with_sharding_constraint(x, here.sharding(tiling))

    return record_jax(MARK, constrain, [tensor], tiling)[0]


def tiling_of(tensor: XlaTensor) -> Tiling | None:
    """How a tensor is sharded: as it was marked, or as XLA chose; None while that is open."""
    return tiling_of_value(tensor.value)


def tiling_of_value(value: Value) -> Tiling | None:
    """`tiling_of` a tensor that points at the value."""
    said = getattr(value, "tiling", None)
    if said is not None:
        return said
    here = value.trace.device.layout
    if here is None:
        return None
    buffer = value.buffer
    if isinstance(buffer, Parts):
        return MANUAL
    if buffer is None:
        return _pending(value)
    if isinstance(buffer, HostArray):
        buffer = buffer.placed
    return None if buffer is None or not here.is_here(buffer) else _of_buffer(here, buffer)


def _of_buffer(here: Layout, buffer: jax.Array) -> Tiling:
    return here.tiling(buffer.sharding, buffer.ndim)


def _pending(value: Value) -> Tiling | None:
    """The tiling of a copy is its source's; of another row's result it is open."""
    tape = trace_of(value).tape
    slot = value.slot
    while value.epoch == tape.epoch:
        row = tape.entries[slot]
        if slot in tape.buffers:
            buffer = tape.buffers[slot]
            here = value.trace.device.layout
            return _of_buffer(here, buffer) if here.is_here(buffer) else None
        if not isinstance(row, tuple):
            return None
        said = SAID_BY.get(row[0].name)
        if said is not None:
            return said(row[0])
        if row[0].name not in _COPIES:
            return None
        slot = row[1]
    return None


def _check_whole(tensor: XlaTensor, of: str) -> None:
    """Raise ShardingError for a tensor that is sharded by hand."""
    if manual_values.devices_of([tensor.value]) is not None:
        raise by_hand(tensor.shape, layout(of).count)


def clear(tensor: XlaTensor) -> None:
    """Forget how a tensor is sharded.

    What is computed goes back to the host, from where a program or a mark takes it anew.
    """
    value = tensor.value
    _check_whole(tensor, "clear_sharding")
    if tiling_of(tensor) is None:
        return
    source = _before_mark(tensor)
    if source is not None:
        write(value, source)
        value.tiling = None
        return
    buffer = buffer_of(value, "clear_sharding")
    if value.parent is None:
        value.tiling = None
    array = buffer.array if isinstance(buffer, HostArray) else gather.whole(buffer)
    copy = Value(value.type, trace_of(value))
    copy.buffer = HostArray(array)  # type: ignore[assignment]
    write(value, copy)


def _before_mark(tensor: XlaTensor) -> Value | None:
    """What a tensor that is not computed yet was before it was marked."""
    value = tensor.value
    trace = trace_of(value)
    tape = trace.tape
    if value.buffer is not None or value.epoch != tape.epoch:
        return None
    row = tape.entries[value.slot]
    if not isinstance(row, tuple) or row[0].name != MARK or row[1] in tape.buffers:
        return None
    return trace.new_value(value.type, tape, row[1])  # type: ignore[no-any-return]


def placed(tensor: XlaTensor, of: str) -> tuple[Layout, jax.Array, Tiling]:
    """A tensor's buffer on the devices, its padding included, and how it lies there."""
    here = layout(of)
    found: Buffer = buffer_of(tensor.value, of)
    raw: Buffer = found if tensor.value.buffer is None else tensor.value.buffer
    if isinstance(raw, Parts):
        raise by_hand(raw.shape, here.count)
    buffer = here.placed(raw)
    return here, buffer, _of_buffer(here, buffer)


def from_shards(
    shards: Sequence[torch.Tensor], shape: Sequence[int], tiling: Tiling, of: str
) -> jax.Array:
    """An array on the devices made of what each local device shall hold, with padding.

    Raises ShardingError where the shards are too few, or of another shape, or of several dtypes.
    """
    here = layout(of)
    mine = [d for d in here.devices if d.process_index == jax.process_index()]
    if len(shards) != len(mine):
        raise ShardingError(
            f"{of}: {len(shards)} shards for {len(mine)} local devices; give one for each"
        )
    wanted = tiling.shard_shape(shape)
    for number, shard in enumerate(shards):
        if tuple(shard.shape) != wanted:
            raise ShardingError(
                f"{of}: shard {number} has shape {list(shard.shape)}; a tensor of shape"
                f" {list(shape)} sharded as {tiling.text} has shards of {list(wanted)}"
            )
        if shard.dtype != shards[0].dtype:
            raise ShardingError(
                f"{of}: shard {number} is {shard.dtype}, and shard 0 is {shards[0].dtype}; give"
                " all in one dtype"
            )
    whole, sharding = tiling.padded_shape(shape), here.sharding(tiling)
    numbers = [here.devices.index(d) for d in mine]
    begins = {n: _begin(part) for n, _, part in tiling.parts(whole)}
    by_begin = {begins[n]: shard for n, shard in zip(numbers, shards)}
    pieces = [
        jax.device_put(np.array(as_numpy(by_begin[_begin(part)])), place)
        for place, part in sharding.addressable_devices_indices_map(whole).items()
    ]
    return jax.make_array_from_single_device_arrays(whole, sharding, pieces)


def _begin(part: Any) -> tuple[int, ...]:
    """Where a part of an array begins."""
    return tuple(one.start or 0 for one in part)


def of_all_processes(tensor: torch.Tensor, tiling: Tiling) -> XlaTensor:
    """The batch of which this tensor, just come from the host, is this process's part."""
    source = on_device(tensor, "minibatch")
    array = source.value.buffer
    if not isinstance(array, HostArray):
        raise ShardingError(
            f"minibatch: the tensor of shape {list(tensor.shape)} is computed or sharded already;"
            " only what comes from the host can be one process's part of a batch"
        )
    buffer = layout("minibatch").of_all_processes(array.array, tiling)
    return new_tensor(buffer, buffer.shape, tensor.dtype, tiling)


def new_tensor(
    buffer: jax.Array, shape: Sequence[int], dtype: torch.dtype, tiling: Tiling
) -> XlaTensor:
    """A tensor that holds a buffer which lies so."""
    value = Value(dense_type(tuple(shape), dtype), device.trace_of(device.index_of(None)))
    value.buffer = buffer
    value.tiling = tiling
    return wrap(value)


def whole_tiling(rank: int, of: str) -> Tiling:
    """Every device holds the whole tensor."""
    return replicated(rank, layout(of).order)
