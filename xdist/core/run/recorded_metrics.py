"""What the metrics count of recorded rows and living tensors when somebody reads them."""

import sys

from torch_xdist import metrics
from torch_xdist.core.programs.launch import held_values
from torch_xdist.core.run.device_trace import all_traces
from torch_xdist.core.trace import op_counts
from torch_xdist.core.trace.values import RootValue


def _count_pending() -> None:
    """Count the rows of tapes that did not run yet."""
    for trace in all_traces():
        # One that runs counts its rows itself.
        if trace.lock.acquire(blocking=False):
            try:
                op_counts.count_rows(trace.tape)
            finally:
                trace.lock.release()


def _tensors_alive() -> int:
    """How many values with storages something besides a tape refers to, and a fixed number."""
    tapes = [trace.tape for trace in all_traces()]
    dead = sum(len(tape.values) - len(held_values(tape)) for tape in tapes)
    return sys.getrefcount(RootValue) - dead


def register() -> None:
    """Let the metrics ask, once per process."""
    metrics.before_reading(_count_pending)
    metrics.count_gone("DestroyXlaTensor", op_counts.CREATED, _tensors_alive)
