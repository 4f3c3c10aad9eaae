"""The ends of steps: `sync` and its kin, and waiting for the device."""

import contextlib
import functools
import sys
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from torch_xdist import metrics, settings, world
from torch_xdist.collectives.shared_memory import transport as shared_memory
from torch_xdist.core.devices import closures, device, transfer
from torch_xdist.core.programs.launch import live_values
from torch_xdist.core.run import analysis, reports
from torch_xdist.core.run.cuts import SYNC
from torch_xdist.core.run.device_trace import HERE, DeviceTrace, trace_of_thread, traces_of
from torch_xdist.core.trace import op_counts
from torch_xdist.core.trace.plans import PLANS
from torch_xdist.progress import PROGRESS

_was_traced = False


def set_tracer_marked_step(value: bool) -> None:
    """Whether a profiler's `StepTrace` ends the present step, so that a loader need not."""
    global _was_traced
    _was_traced = bool(value)


def get_tracer_marked_step() -> bool:
    """Whether a profiler's `StepTrace` ends the present step."""
    return _was_traced


def sync(wait: bool = False, reset_scope: bool = True, device_: object = None) -> None:
    """Run what is pending on this thread's device: the end of a training step.

    Args:
      wait: return only when the device is done.
      reset_scope: number the profiler's blocks anew; no block may be open then.
    """
    end_step(analysis.USER, wait=wait, device_=device_, reset_scope=reset_scope)


def end_step(
    cause: str,
    *,
    wait: bool = False,
    device_: object = None,
    reset_scope: bool = True,
    replay: Callable[[DeviceTrace], None] | None = None,
) -> None:
    """`sync`, called by a part of this project; `cause` says which (see `analysis`).

    Args:
        replay: runs what the step is, where it was not recorded; then nothing is pending.
    """
    if reset_scope:
        reports.reset_scopes()
    trace = trace_of_thread(device.device_of(device_))
    metrics.count("MarkStep")
    now = settings.current()
    if now.step_log:
        print("torch_xla.torch_xla::sync", file=sys.stderr, flush=True)
    outputs = live_values(trace.tape) if wait or now.sync_wait else []
    if replay is None:
        trace.cut(SYNC, cause=cause)
    else:
        replay(trace)
    trace.rounds.seen.clear()
    PLANS.sweep()
    PROGRESS.step += 1
    for value in outputs:
        if value.buffer is not None:
            value.buffer.block_until_ready()
    metrics.look()
    reports.at_sync()
    closures.run_step_closures()


def run_own(reason: str) -> None:
    """Run what this thread has recorded, on any device."""
    for trace in HERE.by_device.values():
        if trace.tape.entries:
            trace.cut(reason)


def settle(reason: str) -> None:
    """Run what this thread has recorded, and return when its device is done; no step ends.

    The last thing the device does is to make a number, which is read: one transfer to the host.
    Raises what failed on the device.
    """
    pending = [trace for trace in HERE.by_device.values() if trace.tape.entries]
    outputs = [value for trace in pending for value in live_values(trace.tape)]
    run_own(reason)
    here = device.device_at(device.default_index())
    if device.are_described():
        return
    layout = here.layout
    devices = [here.jax] if layout is None else layout.devices
    mine = tuple(one for one in devices if one.process_index == here.jax.process_index)
    try:
        for value in outputs:
            if value.buffer is not None:
                value.buffer.block_until_ready()
        if here.choices.is_host and world.replica() is None:
            _wait_for_live_arrays()
        number = _number_on(mine)().block_until_ready()
    except (RuntimeError, ValueError) as error:
        raise shared_memory.error_behind(error) or error from None
    metrics.note(op_counts.TO_CPU)
    transfer.to_host(number.addressable_data(0), torch.int32)


def _wait_for_live_arrays() -> None:
    """Until all that was launched is done; what has failed is raised where it is read."""
    for array in jax.live_arrays():
        with contextlib.suppress(RuntimeError, ValueError):
            if not array.is_deleted():
                array.block_until_ready()


@functools.cache
def _number_on(devices: tuple[jax.Device, ...]) -> Callable[[], jax.Array]:
    """A program that makes a number on each of these devices.

    An accelerator runs what a thread launches on it in that order; a CPU begins it so.
    """
    everywhere = NamedSharding(Mesh(np.array(devices, object), ("devices",)), PartitionSpec())
    return jax.jit(lambda: jnp.int32(1), out_shardings=everywhere).lower().compile()


def run_pending(reason: str, devices: Sequence[object] = ()) -> None:
    """Run what every thread has recorded for these devices; for all of this process where empty.

    What a thread that is a rank of its own recorded, and collectives, only that thread runs: to
    wait here for another rank, which may be waiting for this one, would be a deadlock.
    """
    own = HERE.by_device.values()
    for index in [device.index_of(d) for d in devices] or range(device.device_count()):
        for trace in traces_of(device.device_at(index)):
            if trace in own or not (world.replica() or trace.tape.collectives):
                trace.cut(reason)


def wait_device_ops(devices: Sequence[object] = ()) -> None:
    """Block until everything recorded and launched so far is done.

    Args:
      devices: the devices to wait for; all of this process where empty.
    """
    run_pending(SYNC, devices)
    if device.are_described():
        return
    for index in [device.index_of(d) for d in devices] or range(device.device_count()):
        jax.device_put(0, device.jax_device(index)).block_until_ready()
    for array in jax.live_arrays():
        if not array.is_deleted():
            array.block_until_ready()
    metrics.look()
