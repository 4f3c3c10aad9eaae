"""Processes by the runtime's private names."""

from torch_xdist.pjrt_names import (
    initialize_multiprocess,
    run_multiprocess,
    run_singleprocess,
    spawn,
    spawn_threads,
)

__all__ = [
    "run_multiprocess",
    "spawn",
    "spawn_threads",
    "run_singleprocess",
    "initialize_multiprocess",
]
