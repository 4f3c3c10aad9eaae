"""Profiles by JAX's profiler, under torch_xla's names; TensorBoard and Perfetto read the files."""

import functools
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import jax

from torch_xdist import world
from torch_xdist.core.devices import steps
from torch_xdist.core.run import analysis
from torch_xdist.core.trace.notes import enter_scope, leave_scope

F = TypeVar("F", bound=Callable[..., Any])
_running: list[str] = []


def start_server(port: int, only_on_master: bool = True) -> Any:
    """Let a TensorBoard fetch profiles at `port`. Keep the returned object: it is the server."""
    if only_on_master and world.current().local_rank:
        return None
    return jax.profiler.start_server(port)


def start_trace(log_dir: str) -> None:
    """Profile this process into `log_dir` until `stop_trace`.

    Raises RuntimeError while another profile runs.
    """
    if _running:
        raise RuntimeError(
            f"start_trace: Only one profile may be run at a time. {_running[0]} is being written;"
            " call stop_trace first"
        )
    jax.profiler.start_trace(log_dir)
    _running.append(log_dir)


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
    """Profile this process for `duration_ms` after `delay_ms`, into `logdir`; blocks meanwhile.

    The other arguments are torch_xla's and change nothing here: the profiler of this process
    needs no service and no second attempt.
    """
    pause = threading.Event()
    pause.wait(delay_ms / 1e3)
    start_trace(logdir)
    pause.wait(duration_ms / 1e3)
    stop_trace()


def trace_detached(*args: Any, **kwargs: Any) -> threading.Thread:
    """`trace` on a thread of its own, which is returned."""
    thread = threading.Thread(target=trace, args=args, kwargs=kwargs, daemon=True, name="profile")
    thread.start()
    return thread


class Trace(jax.profiler.TraceAnnotation):
    """A named block in the profile. A step may not end inside it: `sync` raises."""

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


class StepTrace(jax.profiler.StepTraceAnnotation):
    """A block that is one training step in the profile; the step ends (`sync`) with it."""

    def __init__(self, name: str, step_num: int | None = None, **kwargs: Any) -> None:
        if step_num is not None:
            kwargs["step_num"] = step_num
        super().__init__(name, **kwargs)

    def __enter__(self) -> "StepTrace":
        super().__enter__()
        return self

    def __exit__(self, *failure: Any) -> None:
        steps.end_step(analysis.STEP_TRACE)
        super().__exit__(*failure)


def trace_me(scope: str) -> Callable[[F], F]:
    """Decorate a function so that each call is a named block in the profile."""

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            with Trace(scope):
                return function(*args, **kwargs)

        return wrapped  # type: ignore[return-value]

    return decorate
