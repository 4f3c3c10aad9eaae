"""`xp`: profiles."""

from torch_xdist.core.devices.steps import (
    get_tracer_marked_step,
    set_tracer_marked_step,
)
from torch_xdist.debug.profile import (
    StepTrace,
    Trace,
    start_server,
    start_trace,
    stop_trace,
    trace,
    trace_detached,
    trace_me,
)
from torch_xdist.torch_xla_compat.jax_imports import maybe_get_jax

__all__ = [
    "maybe_get_jax",
    "start_server",
    "start_trace",
    "stop_trace",
    "trace",
    "trace_detached",
    "Trace",
    "StepTrace",
    "trace_me",
    "get_tracer_marked_step",
    "set_tracer_marked_step",
]
