"""The CPU fallback: what no lowering serves runs in eager torch on the host, counted.

Every fallback cuts the trace, reads its operands and sends its results back. It counts
`aten::NAME`, and says once per call site what it cost.
"""

import logging
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from torch_xdist import metrics, settings
from torch_xdist.core.alias.views import write
from torch_xdist.core.alias.writes import mutated_tensors, set_value
from torch_xdist.core.devices import host_rows, transfer
from torch_xdist.core.devices.tensor import XlaTensor, wrap
from torch_xdist.core.record import mask_counts
from torch_xdist.core.record.near_names import nearest
from torch_xdist.core.run import cuts, unlowered
from torch_xdist.core.run.device_trace import buffers_of, trace_here
from torch_xdist.core.trace import op_counts
from torch_xdist.core.trace.operators import Op
from torch_xdist.core.trace.plans import CpuOnly, flat
from torch_xdist.core.trace.trace import Trace
from torch_xdist.core.trace.user_frames import user_line
from torch_xdist.errors import FallbackError, NoLoweringError

_log = logging.getLogger(__name__)
_told: set[tuple[str, str]] = set()


def run(op: Op, args: Sequence[Any], kwargs: dict[str, Any], cause: CpuOnly) -> Any:
    """Run one call on the CPU and put its results on the device."""
    tensors = [t for t in flat((args, tuple(kwargs.values()))) if t.__class__ is XlaTensor]
    result = None if cause.error else _of_known(op, args, kwargs, tensors)
    if result is None:
        result = mask_counts.selected(op.name, args, kwargs)
    if result is not None:
        return result
    where = allowed_line(op, _reason(cause), cause.error)
    started = time.perf_counter()
    trace = trace_here(tensors[0].value.trace.device)
    buffers = buffers_of([t.value for t in tensors], cuts.FALLBACK)
    metrics.note(op_counts.TO_CPU)
    hosts = {id(t): transfer.to_host(b, t.value.type.dtype) for t, b in zip(tensors, buffers)}
    for tensor in written(op, args, kwargs):
        # Memory that numpy has seen cannot be resized, as out= may have to.
        hosts[id(tensor)] = hosts[id(tensor)].clone()
    result = counted_call(op, args, kwargs, hosts)
    if cause.error is not None:
        _warn(op, tensors, cause.error, where)
    tell(op.name, where, time.perf_counter() - started)
    return _back(op, result, args, kwargs, hosts, trace)


def _of_known(op: Op, args: Sequence[Any], kwargs: dict[str, Any], tensors: list[Any]) -> Any:
    """The results where the host knows all operands: the shapes of edges that are filtered.

    Nothing is cut, and the host knows the results too. None where it knows too little, or where
    the line had results of many shapes.
    """
    # Parameters are known in the first step alone, which then would be another than the rest.
    rounds = any(t.dtype.is_floating_point or t.dtype.is_complex for t in tensors)
    if rounds or op.func.namespace != "aten" or written(op, args, kwargs):
        return None
    known = host_rows.known([t.value for t in tensors])
    if known is None:
        return None
    hosts = {id(t): host for t, host in zip(tensors, known, strict=True)}
    result = called(op, args, kwargs, hosts)
    shapes = [t.shape for t in flat((result,)) if isinstance(t, torch.Tensor)]
    if not host_rows.allows_shapes(shapes, op.name):
        return None
    return _back(op, result, args, kwargs, hosts, tensors[0].value.trace)


def allowed_line(op: Op, reason: str, error: Exception | None = None) -> str:
    """The user's line. Raises FallbackError where the user wants nothing to run on the CPU."""
    where = user_line()
    if settings.current().fallback == "error":
        raise FallbackError(
            f"{where}: {op.name} {reason} and would run on the CPU, which "
            "XDIST_FALLBACK=error forbids; avoid the operator, or unset XDIST_FALLBACK"
        ) from error
    return where


def counted_call(
    op: Op, args: Sequence[Any], kwargs: dict[str, Any], hosts: dict[int, torch.Tensor]
) -> Any:
    """What the call gives on the CPU; `hosts` has a CPU tensor for the id of each of ours."""
    result = called(op, args, kwargs, hosts)
    name = op.func._schema.name.removeprefix("aten::")
    metrics.count(f"aten::{name}")
    unlowered.note_unlowered(name)
    return result


def _reason(cause: CpuOnly) -> str:
    if cause.error is None:
        return "has no lowering"
    return f"has a lowering that fails ({type(cause.error).__name__}: {cause.error})"


def _warn(op: Op, tensors: Sequence[Any], error: Exception, where: str) -> None:
    """The CPU could run the call, so the lowering is wrong: say so, once per operator."""
    metrics.count("LoweringFailed")
    if (op.name, "") not in _told:
        _told.add((op.name, ""))
        types = ", ".join(repr(t.value.type) for t in tensors)
        warnings.warn(
            f"torch_xdist: {where}: the lowering of {op.name}({types}) failed"
            f" ({type(error).__name__}: {error}), so it runs on the CPU, with a cut at every call."
            " This is a mistake in torch_xdist or a release of JAX it does not know; report it with"
            " this text. The counter LoweringFailed says how often it happens",
            RuntimeWarning,
            stacklevel=2,
        )


def called(
    op: Op, args: Sequence[Any], kwargs: dict[str, Any], hosts: dict[int, torch.Tensor]
) -> Any:
    """`counted_call`, for one that costs nothing."""
    host_args = [_swap(a, hosts) for a in args]
    host_kwargs = {name: _swap(a, hosts) for name, a in kwargs.items()}
    try:
        # As torch calls the kernels of the CPU: some look whether gradients are wanted.
        with torch._C._AutoDispatchBelowAutograd():
            return op.func(*host_args, **host_kwargs)
    except NotImplementedError as error:
        raise NoLoweringError(
            f"{op.name}: it has no lowering, and the CPU cannot run it either ({error}); "
            f"operators with similar names that run: {', '.join(nearest(op.name))}"
        ) from error


def tell(name: str, where: str, took_s: float) -> None:
    """Log what a call cost, once per line."""
    if (name, where) not in _told:
        _told.add((name, where))
        _log.info("%s: %s ran on the CPU: %.1f ms and one cut", where, name, took_s * 1e3)


def _swap(value: Any, hosts: dict[int, torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        return hosts.get(id(value), value)
    if isinstance(value, tuple | list):
        return type(value)(_swap(part, hosts) for part in value)
    if isinstance(value, torch.device):
        return torch.device("cpu")
    return value


def _back(
    op: Op,
    result: Any,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    hosts: dict[int, torch.Tensor],
    trace: Trace,
) -> Any:
    """Results on the device; operands that were written are written there too."""
    originals = {}
    for tensor in written(op, args, kwargs):
        originals[id(hosts[id(tensor)])] = tensor
        _write_back(tensor, hosts[id(tensor)], trace)
    return _wrap(result, originals, trace)


def written(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """The tensors a call writes to."""
    return [t for t in mutated_tensors(op, args, kwargs) if isinstance(t, torch.Tensor)]


def _write_back(tensor: Any, host: torch.Tensor, trace: Trace) -> None:
    value = transfer.value_of(host, trace)
    if tuple(host.shape) != tensor.value.type.shape:
        set_value(tensor, value)
    else:
        write(tensor.value, value)


# Makes a tensor of the device of a CPU tensor that is no plain one; None where it is.
OtherKind = Callable[[torch.Tensor, int], torch.Tensor | None]
_other_kind: OtherKind = lambda tensor, index: None  # noqa: E731


def make_other_kinds_with(make: OtherKind) -> None:
    """From now on `make` is asked for results that may be no plain tensors."""
    global _other_kind
    _other_kind = make


def _wrap(value: Any, originals: dict[int, torch.Tensor], trace: Trace) -> Any:
    if isinstance(value, torch.Tensor):
        known = originals.get(id(value))
        if known is None:
            known = _other_kind(value, trace.device.index)
        return _as_it_lies(value, trace) if known is None else known
    if isinstance(value, tuple | list):
        return type(value)(_wrap(part, originals, trace) for part in value)
    return value


def _as_it_lies(tensor: torch.Tensor, trace: Trace) -> torch.Tensor:
    """A copy on the device, with the strides of a CPU tensor: those of `nonzero` are transposed."""
    strides = tensor.stride()
    order = sorted(range(tensor.dim()), key=lambda dim: -strides[dim])
    inner = tensor.permute(order)
    if tensor.is_contiguous() or not inner.is_contiguous():
        return wrap(transfer.value_of(tensor, trace))
    return wrap(transfer.value_of(inner, trace)).permute(
        [order.index(d) for d in range(len(order))]
    )
