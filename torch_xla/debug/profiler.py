"""`xp`: profiles."""

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

__all__ = [
    "start_server",
    "start_trace",
    "stop_trace",
    "trace",
    "trace_detached",
    "Trace",
    "StepTrace",
    "trace_me",
]
