"""Pending graphs written to files."""

from torch_xdist.torch_xla_compat.graphs import (
    save_tensors_graph,
)

__all__ = [
    "save_tensors_graph",
]
