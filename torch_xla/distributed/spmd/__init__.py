"""`xs`: one process, all devices; tensors are marked with how they are sharded."""

from torch_xdist.spmd.annotations import (
    MarkShardingFunction,
    annotate_custom_sharding,
    clear_sharding,
    mark_sharding,
    mark_sharding_with_gradients,
    shard_as,
    wrap_if_sharded,
)
from torch_xdist.spmd.distribute import (
    auto_policy,
    xla_distribute_module,
    xla_distribute_tensor,
)
from torch_xdist.spmd.hybrid_mesh import (
    HybridMesh,
)
from torch_xdist.spmd.linear import (
    XLAPatchedLinear,
    apply_backward_optimization_barrier,
    xla_patched_nn_linear_forward,
)
from torch_xdist.spmd.manual import (
    _mark_manual_sharding,
    disable_manual_sharding,
    enable_manual_sharding,
)
from torch_xdist.spmd.mesh import (
    Mesh,
    get_1d_mesh,
    get_global_mesh,
    set_global_mesh,
)
from torch_xdist.spmd.op_sharding import (
    ShardingType,
)
from torch_xdist.spmd.sharded_tensor import (
    XLAShard,
    XLAShardedTensor,
)
from torch_xdist.spmd.sharding_spec import (
    ShardingSpec,
)
from torch_xdist.torch_xla_compat.submodules import on_demand as _on_demand

_on_demand(__name__)

__all__ = [
    "HybridMesh",
    "MarkShardingFunction",
    "Mesh",
    "ShardingSpec",
    "ShardingType",
    "XLAPatchedLinear",
    "XLAShard",
    "XLAShardedTensor",
    "_mark_manual_sharding",
    "annotate_custom_sharding",
    "apply_backward_optimization_barrier",
    "auto_policy",
    "clear_sharding",
    "disable_manual_sharding",
    "enable_manual_sharding",
    "get_1d_mesh",
    "get_global_mesh",
    "mark_sharding",
    "mark_sharding_with_gradients",
    "set_global_mesh",
    "shard_as",
    "wrap_if_sharded",
    "xla_distribute_module",
    "xla_distribute_tensor",
    "xla_patched_nn_linear_forward",
]
