"""Operators that copy between devices, or read values into Python."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from torch_xdist import metrics
from torch_xdist.core.alias.views import write
from torch_xdist.core.alias.writes import as_dtype, check_targets
from torch_xdist.core.devices import device, host_rows, transfer
from torch_xdist.core.devices.tensor import XlaTensor, wrap
from torch_xdist.core.devices.transfer import host_number, host_value
from torch_xdist.core.run import loop_cuts, unlowered
from torch_xdist.core.run.device_trace import HERE, DeviceTrace, trace_here
from torch_xdist.core.trace import donation, op_counts
from torch_xdist.core.trace.operators import Op
from torch_xdist.core.trace.plans import PLANS, RESULT
from torch_xdist.core.trace.trace import Trace
from torch_xdist.core.trace.values import Value

_CPU = torch.device("cpu")
_known = PLANS.plans.get
# Fewer are rows.
_LEAST_JOINED = 16
# What copies tensors that are no plain ones, called like a handler: NotImplemented for another one.
OF_OTHER_KINDS: list[Callable[..., Any]] = []


def item(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    metrics.count(metrics.READ_ONE_NUMBER)
    unlowered.note_unlowered("_local_scalar_dense")
    return host_number(args[0])


def equal(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    one, other = args
    if one.shape != other.shape:
        return False
    return bool(torch.eq(one, other).all().item())


def allclose(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    return bool(torch.isclose(*args, **kwargs).all().item())


def joined(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> XlaTensor | None:
    """`cat` and `stack` of many parts of which the host knows all: joined there, and uploaded.

    A replay memory is asked for other ones in each step; each choice would be another program.
    """
    tensors = args[0]
    found = host_rows.parts(tensors) if len(tensors) >= _LEAST_JOINED else None
    result = None if found is None else op.func(found, *args[1:], **kwargs)
    if result is None or not result.is_contiguous():
        return None
    metrics.count("JoinedOnHost")
    return transfer.to_trace(result, trace_here(tensors[0].value.trace.device))


def alias(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> XlaTensor:
    return wrap(args[0].value)


def detach_(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> XlaTensor:
    return args[0]


def to_copy(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    source = args[0]
    if source.__class__ is XlaTensor:
        cast = _cast(op, source.value, kwargs)
        if cast is not None:
            return cast
    for copy_of in OF_OTHER_KINDS:
        copy = copy_of(op, args, kwargs)
        if copy is not NotImplemented:
            return copy
    target = kwargs.get("device")
    named = {n: v for n, v in kwargs.items() if n in ("dtype", "memory_format") and v is not None}
    if target is not None and not device.is_ours(target):
        host = host_value(source) if source.__class__ is XlaTensor else source
        return host.to(device=target, **named)
    if source.__class__ is not XlaTensor:
        return transfer.to_device(source.to(**named), target)
    index = source.value.trace.device.index
    if target is not None and device.index_of(target) != index:
        source = to_other_device(source, device.index_of(target))
    assert op.general is not None
    return op.general(op, (source,), named)


def _cast(op: Op, value: Value, kwargs: dict[str, Any]) -> XlaTensor | None:
    """The copy in another dtype, where one like it has a plan; autocast makes most rows of these.

    None where the general path must look at the call.
    """
    there = value.trace.device
    target, dtype = kwargs.get("device"), kwargs.get("dtype")
    if kwargs.get("memory_format") is not None or (target is not None and target != there.lazy):
        return None
    if dtype in device.NOT_EVERYWHERE:
        return None
    # As `arguments.find` makes it.
    type_ = value.type
    plan: Any = _known((op, "dtype", type_.at_zero or type_, (dtype.__class__, dtype)))
    if plan is None or plan.path is not RESULT:
        return None
    trace = HERE.trace
    if trace.device is not there:
        trace = trace_here(there)
    return wrap(trace.record_one(plan, value))


def to_other_device(source: XlaTensor, index: int) -> XlaTensor:
    """A copy on another device of this process."""
    return transfer.to_device(host_value(source), index)


def is_elsewhere(source: Any, target: Any) -> bool:
    """Whether what is made after `source` shall be on another device than that is."""
    if target is None or not isinstance(source, XlaTensor):
        return False
    is_plain = source.__class__ is XlaTensor
    own = source.value.trace.device.index if is_plain else source.device.index
    return not device.is_ours(target) or device.index_of(target) != own


def made_elsewhere(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """What `zeros_like`, `new_full` and their kind make on another device than the tensor's."""
    like, target = args[0].value.type.meta, kwargs["device"]
    if not device.is_ours(target):
        return op.func(like, *args[1:], **kwargs)
    made = op.func(like, *args[1:], **{**kwargs, "device": _CPU})
    return transfer.to_device(made, device.index_of(target))


def copy_(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    target, source = args[0], args[1]
    if target.__class__ is not XlaTensor:
        return target.copy_(host_value(source))
    check_targets(op, [target])
    value = target.value
    there = value.trace.device
    slot, started = -1, 0.0
    if source.__class__ is not XlaTensor:
        trace, started = trace_here(there), time.perf_counter()
        source = transfer.to_trace(source.to(value.type.dtype), trace)
        slot = value.slot if value.epoch == trace.tape.epoch else -1
    elif source.value.trace.device is not there:
        source = to_other_device(source, there.index)
    if source.value.type.shape != value.type.shape:
        source = source.expand(value.type.shape)
    write(value, as_dtype(source.value, value.type.dtype))
    if not started and value.buffer is not None:
        donation.share(value.buffer)
    if started:
        is_new = slot >= 0 and _forget_empty(trace, slot)
        tally = op_counts.TO_DEVICE if is_new else op_counts.COPY_FROM
        metrics.note(tally, ("LazyTracing", time.perf_counter() - started, 1))
        if is_new and isinstance(trace, DeviceTrace):
            loop_cuts.after_upload(trace, target)
            # Where that cut, the batch belongs to the new tape, as the first one did to the old.
            trace.list_value(value, trace.tape)
    return target


def _forget_empty(trace: Trace, slot: int) -> bool:
    """Take back the row of an empty tensor that a copy from the host has just filled.

    torch makes one in `.to`; left on the tape, a step would be another program than the next one,
    which uploads nothing. Returns whether it was one.
    """
    entries = trace.tape.entries
    if slot == len(entries) - 1 and not trace.is_symbolic:
        row: Any = entries[slot]
        if isinstance(row, tuple) and row[0].name == "empty":
            del entries[slot]
            trace.tape.counted = min(trace.tape.counted, slot)
            return True
    return False


def is_pinned(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    return False


def is_same_size(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    return args[0].shape == args[1].shape


def copy_of_view(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """The view of the same name, copied; torch has no decomposition of these."""
    name, overload = _VIEWS_OF_COPIES[op.name].split(".")
    view = getattr(getattr(torch.ops.aten, name), overload)(*args, **kwargs)
    return view.clone() if isinstance(view, torch.Tensor) else [part.clone() for part in view]


def nothing(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    return None


_VIEWS_OF_COPIES = {
    "aten._conj_copy.default": "_conj.default",
    "aten._neg_view_copy.default": "_neg_view.default",
    "aten._reshape_alias_copy.default": "_reshape_alias.default",
    "aten.detach_copy.default": "detach.default",
    "aten.lift_fresh_copy.default": "lift_fresh.default",
    "aten.select_copy.int": "select.int",
    "aten.slice_copy.Tensor": "slice.Tensor",
    "aten.split_copy.Tensor": "split.Tensor",
    "aten.view_as_complex_copy.default": "view_as_complex.default",
    "aten.view_as_real_copy.default": "view_as_real.default",
}
HANDLERS = {
    **dict.fromkeys(_VIEWS_OF_COPIES, copy_of_view),
    "aten._assert_async.default": nothing,
    "aten._assert_async.msg": nothing,
    "aten._local_scalar_dense.default": item,
    "aten._to_copy.default": to_copy,
    "aten.alias.default": alias,
    "aten.allclose.default": allclose,
    "aten.copy_.default": copy_,
    "aten.detach.default": alias,
    "aten.detach_.default": detach_,
    "aten.equal.default": equal,
    "aten.is_pinned.default": is_pinned,
    "aten.is_same_size.default": is_same_size,
    "aten.item.default": item,
    "aten.lift.default": alias,
    "aten.lift_fresh.default": alias,
    "aten.record_stream.default": nothing,
}
SHORTCUTS = {"aten.cat.default": joined, "aten.stack.default": joined}
