"""What torch's `openxla` backend calls: a captured graph as a callable on the device."""

from torch_xdist.dynamo.bridge import (
    dynamo_debug,
    extract_compiled_graph,
    extract_compiled_graph_helper,
    extract_graph_helper,
    extract_internal,
    partition_fx_graph_for_cpu_fallback,
    ptxla_debug,
)
from torch_xdist.dynamo.bridge import (
    extract_compiled_graph as torchxla_trace_once,
)
from torch_xdist.dynamo.graph_inputs import (
    Deduper,
    GraphInputMatcher,
    NoneRemover,
    SpecialReturnHandler,
)
from torch_xdist.dynamo.partitions import (
    InputCollector,
    UnsupportedNodesCollector,
    XLAConstructorMoverPass,
    get_fallback_ops,
    is_xla_tensor,
)
from torch_xdist.torch_xla_compat.buffer_donation import alias_with_buffer_donor_config

__all__ = [
    "Deduper",
    "GraphInputMatcher",
    "InputCollector",
    "NoneRemover",
    "SpecialReturnHandler",
    "UnsupportedNodesCollector",
    "XLAConstructorMoverPass",
    "alias_with_buffer_donor_config",
    "dynamo_debug",
    "extract_compiled_graph",
    "extract_compiled_graph_helper",
    "extract_graph_helper",
    "extract_internal",
    "get_fallback_ops",
    "is_xla_tensor",
    "partition_fx_graph_for_cpu_fallback",
    "ptxla_debug",
    "torchxla_trace_once",
]
