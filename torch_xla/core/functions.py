"""`xf`: collectives that autograd passes through, and what is built on them."""

from torch_xdist.ranks.autograd_collectives import (
    AllGather,
    AllReduce,
    AllReduceSumLayer,
    SyncBatchNorm,
    all_gather,
    all_reduce,
    distributed_mm,
)
from torch_xdist.torch_xla_compat.nms import (
    nms,
)

__all__ = [
    "AllGather",
    "AllReduce",
    "AllReduceSumLayer",
    "all_reduce",
    "all_gather",
    "distributed_mm",
    "SyncBatchNorm",
    "nms",
]
