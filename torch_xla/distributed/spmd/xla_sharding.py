"""Meshes, specs and marks."""

from torch_xdist.spmd.annotations import (
    MarkShardingFunction,
    PyTreeA,
    PyTreeB,
    annotate_custom_sharding,
    aot_mark_sharding_fake,
    clear_sharding,
    mark_sharding,
    mark_sharding_with_gradients,
    shard_as,
    unwrap_sharded_tensor,
    wrap_as_sharded_tensor,
    wrap_if_sharded,
)
from torch_xdist.spmd.hybrid_mesh import (
    HybridMesh,
)
from torch_xdist.spmd.linear import (
    EinsumLinear,
    XLAPatchedLinear,
    apply_backward_optimization_barrier,
    apply_xla_patch_to_nn_linear,
    xla_patched_nn_linear_forward,
)
from torch_xdist.spmd.manual import (
    _mark_manual_sharding,
    disable_manual_sharding,
    enable_manual_sharding,
)
from torch_xdist.spmd.mesh import (
    Mesh,
    PartitionSpec,
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
from torch_xdist.torch_xla_compat.jax_imports import (
    maybe_get_jax,
    maybe_get_torchax,
    requires_jax,
)

__all__ = [
    "EinsumLinear",
    "HybridMesh",
    "MarkShardingFunction",
    "Mesh",
    "PartitionSpec",
    "PyTreeA",
    "PyTreeB",
    "ShardingSpec",
    "ShardingType",
    "XLAPatchedLinear",
    "XLAShard",
    "XLAShardedTensor",
    "_mark_manual_sharding",
    "annotate_custom_sharding",
    "aot_mark_sharding_fake",
    "apply_backward_optimization_barrier",
    "apply_xla_patch_to_nn_linear",
    "clear_sharding",
    "disable_manual_sharding",
    "enable_manual_sharding",
    "get_1d_mesh",
    "get_global_mesh",
    "mark_sharding",
    "mark_sharding_with_gradients",
    "maybe_get_jax",
    "maybe_get_torchax",
    "requires_jax",
    "set_global_mesh",
    "shard_as",
    "unwrap_sharded_tensor",
    "wrap_as_sharded_tensor",
    "wrap_if_sharded",
    "xla_patched_nn_linear_forward",
]
