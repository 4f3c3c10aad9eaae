"""`xf`: collectives that autograd passes through, and what is built on them."""

from torch_xdist.names.boxes import (
    nms,
)
from torch_xdist.ranks.cross_rank import (
    SyncBatchNorm,
    all_gather,
    all_reduce,
    distributed_mm,
)

__all__ = [
    "all_reduce",
    "all_gather",
    "distributed_mm",
    "SyncBatchNorm",
    "nms",
]
