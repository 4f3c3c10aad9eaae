"""Cuts: the only place where a pending trace becomes a program and runs.

Every cut has a named reason and the user's file:line; both are counted and kept in `LOG`.
"""

import sys
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax

from torch_xdist import metrics, settings
from torch_xdist.core import closures, device, program, reports
from torch_xdist.core.aside import aside
from torch_xdist.core.callers import user_line
from torch_xdist.core.trace import Cell, Trace, View
from torch_xdist.core.views import slot_of
from torch_xdist.errors import CutError
from torch_xdist.progress import PROGRESS

SYNC, READ, FALLBACK, LIMIT = reports.SYNC, "read", "fallback", "limit"


@dataclass(frozen=True, slots=True)
class Cut:
    """One cut: why, where in the user's code, how many rows ran, and whether XLA compiled."""

    reason: str
    where: str
    rows: int
    compiled: bool
    fingerprint: str


LOG: deque[Cut] = deque(maxlen=1000)
REASONS: Counter[str] = Counter()


def cut(
    trace: Trace, reason: str, wanted: Sequence[Cell] = (), *, cause: str = reports.USER
) -> list[jax.Array]:
    """Run every pending row of a trace once; returns the buffers of the wanted cells.

    `cause` says who asked for a sync (see `reports`).

    Every live cell of the trace holds a buffer afterwards. Exception: wanted cells that need none
    of the pending collectives are computed aside, and everything stays pending.
    """
    with trace.lock:
        if trace.is_paper:
            raise CutError(
                f"{reason}: a decomposition asked for the value of a tensor while it was "
                "recorded; such an operator runs on the CPU"
            )
        slots = [slot_of(cell) for cell in wanted]
        if trace.collectives and slots:
            found = aside(trace, slots)
            if found is not None:
                return _run_all(found[0], reason, cause, found[1])
        return _run_all(trace, reason, cause, slots)


def _run_all(trace: Trace, reason: str, cause: str, slots: Sequence[int]) -> list[jax.Array]:
    try:
        return _run(trace, reason, cause, slots) if trace.rows else _from_leaves(trace, slots)
    finally:
        trace.reset()


def _from_leaves(trace: Trace, slots: Sequence[int]) -> list[jax.Array]:
    held = dict(zip(trace.leaf_slots, trace.leaf_buffers))
    for cell in program.live_cells(trace):
        cell.buffer = held[cell.slot]
    return [held[slot] for slot in slots]  # type: ignore[misc]


def _run(trace: Trace, reason: str, cause: str, slots: Sequence[int]) -> list[jax.Array]:
    live = program.live_cells(trace)
    wanted = dict.fromkeys([*[cell.slot for cell in live], *slots])
    # What is a leaf already stays as it is: the program neither returns nor donates it.
    found: dict[int, Any] = {
        slot: buffer for slot, buffer in zip(trace.leaf_slots, trace.leaf_buffers) if slot in wanted
    }
    outs = tuple([slot for slot in wanted if slot not in found])
    reports.before_run(trace, outs)
    launch = program.prepare(trace, outs, may_donate=True)
    compiled = program.find(trace, launch)
    _note(trace, reason, compiled)
    reports.at_run(trace, reason, cause, compiled, len(outs))
    results = program.execute(trace, compiled, launch)
    found.update(zip(outs, results))
    for cell in live:
        cell.buffer = found[cell.slot]
    return [found[slot] for slot in slots]  # type: ignore[misc]


def _note(trace: Trace, reason: str, compiled: program.Program) -> None:
    where = user_line()
    REASONS[reason] += 1
    metrics.count(f"Cut.{reason}")
    LOG.append(Cut(reason, where, len(trace.rows), not compiled.is_compiled, compiled.fingerprint))
    PROGRESS.where = where
    if trace.collectives:
        PROGRESS.collective += trace.collectives
        PROGRESS.fingerprint = compiled.fingerprint
        names = (row[0].name for row in reversed(trace.rows) if row[0].is_collective)
        PROGRESS.name = next(names, "").removeprefix("xla.")


def _is_there(cell: Cell) -> bool:
    """Whether a cell holds its value already: no row of its trace has to run for it."""
    pending = isinstance(cell, View) or cell.epoch == cell.trace.epoch
    return not pending and cell.buffer is not None


def buffer_of(cell: Cell, reason: str = READ) -> jax.Array:
    """The JAX array of a cell's value, cutting its trace where the value is pending."""
    trace = cell.trace
    with trace.lock:
        if _is_there(cell):
            return cell.buffer  # type: ignore[return-value]
        return cut(trace, reason, [cell])[0]


def buffers_of(cells: Sequence[Cell], reason: str = READ) -> list[jax.Array]:
    """The JAX arrays of several cells, with at most one cut per device."""
    traces = {cell.trace for cell in cells}
    if len(traces) > 1:
        return [buffer_of(cell, reason) for cell in cells]
    if all(map(_is_there, cells)):
        return [c.buffer for c in cells]  # type: ignore[misc]
    return cut(cells[0].trace, reason, cells)


def sync(wait: bool = False, reset_scope: bool = True, device_: object = None) -> None:
    """Run what is pending on this thread's device: the end of a training step.

    Args:
      wait: return only when the device is done.
      reset_scope: accepted for torch_xla's sake; there are no scopes to reset.
    """
    end_step(reports.USER, wait=wait, device_=device_)


def end_step(cause: str, *, wait: bool = False, device_: object = None) -> None:
    """`sync`, called by a part of this project; `cause` says which (see `reports`)."""
    reports.check_no_open_scope()
    trace = device.trace_of(device.index_of(device_))
    metrics.count("MarkStep")
    PROGRESS.step += 1
    if settings.current().step_log:
        print("torch_xla.torch_xla::sync", file=sys.stderr, flush=True)
    with trace.lock:
        outputs = program.live_cells(trace) if wait or settings.current().sync_wait else []
        cut(trace, SYNC, cause=cause)
    for cell in outputs:
        if cell.buffer is not None:
            cell.buffer.block_until_ready()
    reports.at_sync()
    closures.run_step_closures()


def wait_device_ops(devices: Sequence[object] = ()) -> None:
    """Block until everything launched so far is done.

    Args:
      devices: the devices to wait for; all of this process where empty.
    """
    indices = [device.index_of(d) for d in devices] or range(device.device_count())
    for index in indices:
        trace = device.trace_of(index)
        cut(trace, SYNC)
        jax.device_put(0, device.jax_device(index)).block_until_ready()
    for array in jax.live_arrays():
        if not array.is_deleted():
            array.block_until_ready()
