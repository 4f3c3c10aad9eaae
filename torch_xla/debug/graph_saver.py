"""Pending graphs written to files."""

from torch_xdist.core.graph_text import (
    save_tensors_graph,
)

__all__ = [
    "save_tensors_graph",
]
