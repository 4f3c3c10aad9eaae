"""The CPU fallback: what no lowering serves runs in eager torch on the host, counted.

Every fallback cuts the trace, reads its operands and sends its results back. It counts
`aten::NAME`, and says once per call site what it cost.
"""

import logging
import time
from collections.abc import Sequence
from typing import Any

import torch

from torch_xdist import metrics, settings
from torch_xdist.core import cuts, transfer
from torch_xdist.core.callers import user_line
from torch_xdist.core.plan import Op, flat
from torch_xdist.core.suggest import nearest
from torch_xdist.core.tensor import XlaTensor
from torch_xdist.core.trace import Trace
from torch_xdist.core.views import write
from torch_xdist.core.writes import move_cell
from torch_xdist.errors import FallbackError, NoLoweringError

_log = logging.getLogger(__name__)
_told: set[tuple[str, str]] = set()


def run(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Run one call on the CPU and put its results on the device."""
    where = user_line()
    if settings.current().fallback == "error":
        raise FallbackError(
            f"{where}: {op.name} has no lowering and would run on the CPU, which "
            "XDIST_FALLBACK=error forbids; avoid the operator, or unset XDIST_FALLBACK"
        )
    started = time.perf_counter()
    tensors = [t for t in flat((args, tuple(kwargs.values()))) if t.__class__ is XlaTensor]
    trace = tensors[0].cell.trace
    buffers = cuts.buffers_of([t.cell for t in tensors], cuts.FALLBACK)
    hosts = {id(t): transfer.to_host(b, t.cell.kind.dtype) for t, b in zip(tensors, buffers)}
    for tensor in _written(op, args, kwargs):
        # Memory that numpy has seen cannot be resized, as out= may have to.
        hosts[id(tensor)] = hosts[id(tensor)].clone()
    host_args = [_swap(a, hosts) for a in args]
    host_kwargs = {name: _swap(a, hosts) for name, a in kwargs.items()}
    result = _call(op, host_args, host_kwargs)
    metrics.count("aten::" + op.func._schema.name.removeprefix("aten::"))
    _tell(op.name, where, time.perf_counter() - started)
    return _back(op, result, args, kwargs, hosts, trace)


def _call(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    try:
        with torch.no_grad():
            return op.func(*args, **kwargs)
    except NotImplementedError as error:
        raise NoLoweringError(
            f"{op.name}: it has no lowering, and the CPU cannot run it either ({error}); "
            f"operators with similar names that run: {', '.join(nearest(op.name))}"
        ) from error


def _tell(name: str, where: str, took_s: float) -> None:
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
    for tensor in _written(op, args, kwargs):
        originals[id(hosts[id(tensor)])] = tensor
        _write_back(tensor, hosts[id(tensor)], trace)
    return _wrap(result, originals, trace)


def _written(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """The tensors a call writes to."""
    written: list[torch.Tensor] = []
    for position, name in op.mutated:
        named = position >= len(args) or name in kwargs
        value = kwargs.get(name) if named else args[position]
        written += [t for t in flat(value) if isinstance(t, torch.Tensor)]
    return written


def _write_back(tensor: Any, host: torch.Tensor, trace: Trace) -> None:
    cell = transfer.cell_of(host, trace)
    if tuple(host.shape) != tensor.cell.kind.shape:
        move_cell(tensor, cell)
    else:
        write(tensor.cell, trace.enter_leaf(cell))


def _wrap(value: Any, originals: dict[int, torch.Tensor], trace: Trace) -> Any:
    if isinstance(value, torch.Tensor):
        known = originals.get(id(value))
        return transfer.to_trace(value, trace) if known is None else known
    if isinstance(value, tuple | list):
        return type(value)(_wrap(part, originals, trace) for part in value)
    return value
