"""What is written and read of sharded tensors."""

from torch.distributed._shard._utils import (
    narrow_tensor_by_index,
)
from torch.distributed.checkpoint._dedup_save_plans import (
    dedup_save_plans as dedup_tensors,
)
from torch.distributed.checkpoint._traverse import (
    set_element,
)

from torch_xdist.sharded_checkpoint.planners import (
    SPMDLoadPlanner,
    SPMDSavePlanner,
)
from torch_xdist.sharded_checkpoint.state_dicts import (
    flatten_state_dict,
)
from torch_xdist.spmd.sharded_tensor import (
    XLAShard,
    XLAShardedTensor,
)

__all__ = [
    "SPMDLoadPlanner",
    "SPMDSavePlanner",
    "XLAShard",
    "XLAShardedTensor",
    "dedup_tensors",
    "flatten_state_dict",
    "narrow_tensor_by_index",
    "set_element",
]
