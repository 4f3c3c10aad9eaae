"""FSDPv2: parameters cut over the devices by marks alone."""

from torch_xdist.ranks.fsdp.wrap import (
    recursive_wrap,
)
from torch_xdist.spmd.fully_sharded import (
    SpmdFullyShardedDataParallel,
)
from torch_xdist.spmd.fully_sharded import (
    prepare_spmd_partition_spec as _prepare_spmd_partition_spec,
)

__all__ = [
    "SpmdFullyShardedDataParallel",
    "_prepare_spmd_partition_spec",
    "recursive_wrap",
]
