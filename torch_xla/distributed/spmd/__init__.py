"""`xs`: one process, all devices; tensors are marked with how they are sharded."""

from torch_xdist.spmd.annotations import (
    MarkShardingFunction,
    ShardingSpec,
    annotate_custom_sharding,
    clear_sharding,
    mark_sharding,
    mark_sharding_with_gradients,
    shard_as,
    wrap_if_sharded,
)
from torch_xdist.spmd.mesh import (
    Mesh,
    get_1d_mesh,
    get_global_mesh,
    set_global_mesh,
)
from torch_xdist.spmd.op_sharding import ShardingType
from torch_xdist.spmd.sharded_tensor import XLAShard, XLAShardedTensor

__all__ = [
    "MarkShardingFunction",
    "Mesh",
    "ShardingSpec",
    "ShardingType",
    "XLAShard",
    "XLAShardedTensor",
    "annotate_custom_sharding",
    "clear_sharding",
    "get_1d_mesh",
    "get_global_mesh",
    "mark_sharding",
    "mark_sharding_with_gradients",
    "set_global_mesh",
    "shard_as",
    "wrap_if_sharded",
]
