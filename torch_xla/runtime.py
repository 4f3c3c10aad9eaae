"""`xr`: the runtime, its devices and its ranks."""

from torch_xdist.core.devices.ordinals import (
    addressable_device_count,
    get_master_ip,
    global_device_count,
    global_ordinal,
    host_index,
    local_device_count,
    local_ordinal,
    local_process_count,
    process_count,
    process_index,
    world_size,
)
from torch_xdist.core.devices.ordinals import (
    addressable_device_count as addressable_runtime_device_count,
)
from torch_xdist.core.devices.ordinals import (
    global_device_count as global_runtime_device_count,
)
from torch_xdist.torch_xla_compat.private_names import (
    is_spmd,
    use_spmd,
)
from torch_xdist.torch_xla_compat.runtime_facts import (
    FN,
    R,
    device_type,
    get_num_cached_compilation_graph,
    global_runtime_device_attributes,
    initialize_cache,
    is_bf16_supported,
    runtime_device_attributes,
    set_device_type,
)

__all__ = [
    "FN",
    "R",
    "device_type",
    "set_device_type",
    "initialize_cache",
    "get_num_cached_compilation_graph",
    "is_bf16_supported",
    "runtime_device_attributes",
    "global_runtime_device_attributes",
    "use_spmd",
    "is_spmd",
    "world_size",
    "global_ordinal",
    "local_ordinal",
    "process_index",
    "process_count",
    "local_process_count",
    "host_index",
    "addressable_device_count",
    "addressable_runtime_device_count",
    "local_device_count",
    "global_device_count",
    "global_runtime_device_count",
    "get_master_ip",
]
