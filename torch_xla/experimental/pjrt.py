"""The runtime's names of 1.13 to 2.3."""

from torch_xdist.core.devices.ordinals import (
    addressable_device_count,
    global_device_count,
    global_ordinal,
    local_device_count,
    local_ordinal,
    local_process_count,
    process_count,
    process_index,
    world_size,
)
from torch_xdist.launcher.torch_xla_names.pjrt import (
    run_multiprocess,
    using_pjrt,
)
from torch_xdist.launcher.ways_in.spawn import (
    spawn,
)
from torch_xdist.ranks.gradients import (
    broadcast_master_param,
)
from torch_xdist.ranks.rendezvous import (
    rendezvous,
)
from torch_xdist.torch_xla_compat.deprecation import (
    old_module,
)
from torch_xdist.torch_xla_compat.runtime_facts import (
    device_type,
)

old_module(__name__, "torch_xla.runtime")

__all__ = [
    "device_type",
    "global_ordinal",
    "world_size",
    "local_ordinal",
    "process_index",
    "process_count",
    "local_process_count",
    "addressable_device_count",
    "local_device_count",
    "global_device_count",
    "broadcast_master_param",
    "rendezvous",
    "spawn",
    "run_multiprocess",
    "using_pjrt",
]
