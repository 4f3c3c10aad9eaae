"""Processes by the runtime's private names."""

from torch_xdist.launcher.torch_xla_names.pjrt import (
    initialize_multiprocess,
    run_multiprocess,
    run_singleprocess,
    spawn,
)
from torch_xdist.ranks.replicas import (
    spawn_threads,
)
from torch_xdist.torch_xla_compat.runtime_facts import R
from torch_xdist.torch_xla_compat.tpu_facts import (
    initialize_singleprocess,
)

__all__ = [
    "R",
    "run_multiprocess",
    "spawn",
    "run_singleprocess",
    "initialize_multiprocess",
    "initialize_singleprocess",
    "spawn_threads",
]
