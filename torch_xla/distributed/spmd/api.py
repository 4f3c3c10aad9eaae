"""Shardings said by DTensor's meshes and placements."""

from torch_xdist.spmd.annotations import (
    mark_sharding,
)
from torch_xdist.spmd.distribute import (
    auto_policy,
    convert_to_xla_mesh,
    convert_to_xla_partition_spec,
    with_xla,
    xla_distribute_module,
    xla_distribute_tensor,
)
from torch_xdist.spmd.mesh import (
    Mesh,
)
from torch_xdist.spmd.op_sharding import (
    ShardingType,
)
from torch_xdist.spmd.sharded_tensor import (
    XLAShardedTensor,
)

__all__ = [
    "Mesh",
    "ShardingType",
    "XLAShardedTensor",
    "auto_policy",
    "convert_to_xla_mesh",
    "convert_to_xla_partition_spec",
    "mark_sharding",
    "with_xla",
    "xla_distribute_module",
    "xla_distribute_tensor",
]
