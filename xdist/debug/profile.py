"""Profiles by JAX's profiler, by torch_xla's names; XProf, TensorBoard and Perfetto read them."""

import functools
import os
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import jax

from torch_xdist import world
from torch_xdist.core.devices import steps
from torch_xdist.core.run import analysis
from torch_xdist.core.trace.notes import enter_scope, leave_scope
from torch_xdist.debug import remote_profile
from torch_xdist.debug.native_profiler import ProfilerServer

F = TypeVar("F", bound=Callable[..., Any])
_running: list[str] = []


def start_server(port: int, only_on_master: bool = True) -> Any:
    """Let `trace`, or TensorBoard, fetch profiles at `port` for as long as the result is kept.

    Args:
        only_on_master: on other ranks than the first of a host nothing is started.
    """
    if only_on_master and world.current().local_rank:
        return None
    return ProfilerServer(port)


def start_trace(log_dir: os.PathLike[str] | str) -> None:
    """Profile this process into `log_dir` until `stop_trace`.

    Raises RuntimeError while another profile runs.
    """
    if _running:
        raise RuntimeError(
            f"start_trace: Only one profile may be run at a time. {_running[0]} is being written;"
            " call stop_trace first"
        )
    jax.profiler.start_trace(log_dir)
    _running.append(str(log_dir))


def stop_trace() -> None:
    """End the profile and write it. Raises RuntimeError where none runs."""
    if not _running:
        raise RuntimeError("stop_trace: No profile started; call start_trace first")
    jax.profiler.stop_trace()
    _running.clear()


def trace(
    service_addr: str,
    logdir: str,
    duration_ms: int = 1000,
    num_tracing_attempts: int = 3,
    host_tracer_level: int = 2,
    device_tracer_level: int = 1,
    delay_ms: int = 0,
    timeout_s: int = 120,
    interval_s: int = 5,
) -> None:
    """Profile the processes whose `start_server` listens at these addresses; blocks meanwhile.

    Args:
        service_addr: such as "localhost:9012"; several are separated by commas.
        logdir: a folder that those processes can write to.
        num_tracing_attempts: how often to ask again for a profile in which nothing happened.
        host_tracer_level: 1 for the most important events, 2, or 3 for all.
        device_tracer_level: 0 without the device's events.
        delay_ms: how long to wait before.
        timeout_s, interval_s: how long, and how often, to try servers that do not answer.

    Raises RuntimeError where a server does not answer, or nothing happened.
    """
    options = {
        "host_tracer_level": host_tracer_level,
        "device_tracer_level": device_tracer_level,
        "delay_ms": delay_ms,
    }
    remote_profile.collect(
        service_addr, logdir, duration_ms, num_tracing_attempts, timeout_s, interval_s, options
    )


def trace_detached(*args: Any, **kwargs: Any) -> threading.Thread:
    """`trace` on a thread of its own, which is returned."""
    thread = threading.Thread(target=trace, args=args, kwargs=kwargs, daemon=True, name="profile")
    thread.start()
    return thread


class Trace(jax.profiler.TraceAnnotation):
    """A named block in the profile, and with XLA_HLO_DEBUG in what XLA knows of operators.

    A step may not end inside it: `sync` raises.
    """

    def __init__(self, name: str, **kwargs: Any) -> None:
        super().__init__(name, **kwargs)
        self.name = name

    def __enter__(self) -> "Trace":
        enter_scope(self.name)
        super().__enter__()
        return self

    def __exit__(self, *failure: Any) -> None:
        leave_scope()
        super().__exit__(*failure)


class StepTrace(Trace):
    """A block that is one training step in the profile; the step ends (`sync`) with it."""

    def __init__(self, name: str, step_num: int | None = None, **kwargs: Any) -> None:
        if step_num is not None:
            kwargs["step_num"] = step_num
        # What tells profiles that it is a step.
        super().__init__(name, _r=1, **kwargs)

    def __enter__(self) -> "StepTrace":
        steps.set_tracer_marked_step(True)
        super().__enter__()
        return self

    def __exit__(self, *failure: Any) -> None:
        leave_scope()
        try:
            steps.end_step(analysis.STEP_TRACE)
        finally:
            super(Trace, self).__exit__(*failure)


def trace_me(scope: str) -> Callable[[F], F]:
    """Decorate a function so that each call is a named block in the profile."""

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            with Trace(scope):
                return function(*args, **kwargs)

        return wrapped  # type: ignore[return-value]

    return decorate
