"""What torch's `openxla` backend calls: a captured graph as a callable on the device."""

from torch_xdist.training.dynamo import (
    extract_compiled_graph,
)
from torch_xdist.training.dynamo import (
    extract_compiled_graph as torchxla_trace_once,
)

__all__ = [
    "extract_compiled_graph",
    "torchxla_trace_once",
]
