"""`xmp`: processes, one per device."""

from torch_xdist.launcher.ways_in.spawn import (
    spawn,
)
from torch_xdist.ranks.one_at_a_time import (
    MpModelWrapper,
    MpSerialExecutor,
)
from torch_xdist.torch_xla_compat.replica_groups import (
    create_optimized_replica_groups,
    device_kind_handler_dict,
)

__all__ = [
    "create_optimized_replica_groups",
    "device_kind_handler_dict",
    "spawn",
    "MpModelWrapper",
    "MpSerialExecutor",
]
