"""State dicts with sharded tensors."""

from torch.distributed._shard._utils import (
    narrow_tensor_by_index,
)
from torch.distributed.checkpoint._dedup_save_plans import (
    dedup_save_plans as dedup_tensors,
)
from torch.distributed.checkpoint._traverse import (
    set_element,
)

from torch_xdist.sharded_checkpoint.state_dicts import (
    CpuShards as _CpuShards,
)
from torch_xdist.sharded_checkpoint.state_dicts import (
    cpu_shards_from_tensors as _cpu_shards_from_tensors,
)
from torch_xdist.sharded_checkpoint.state_dicts import (
    flatten_state_dict,
)
from torch_xdist.sharded_checkpoint.state_dicts import (
    is_sharded_tensor as _is_sharded_tensor,
)
from torch_xdist.sharded_checkpoint.state_dicts import (
    keep_visiting_tensors as _keep_visiting_tensors,
)
from torch_xdist.sharded_checkpoint.state_dicts import (
    sharded_cpu_state_dict as _sharded_cpu_state_dict,
)
from torch_xdist.sharded_checkpoint.state_dicts import (
    traverse_state_dict as _traverse_state_dict,
)
from torch_xdist.spmd.marks import (
    unwrapped as _unwrap_xla_sharded_tensor,
)
from torch_xdist.spmd.op_sharding import (
    ShardingType,
)
from torch_xdist.spmd.sharded_tensor import (
    XLAShardedTensor,
)

__all__ = [
    "ShardingType",
    "XLAShardedTensor",
    "_CpuShards",
    "_cpu_shards_from_tensors",
    "_is_sharded_tensor",
    "_keep_visiting_tensors",
    "_sharded_cpu_state_dict",
    "_traverse_state_dict",
    "_unwrap_xla_sharded_tensor",
    "dedup_tensors",
    "flatten_state_dict",
    "narrow_tensor_by_index",
    "set_element",
]
