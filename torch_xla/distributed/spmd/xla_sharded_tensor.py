"""A device tensor that knows how it is sharded."""

from torch_xdist.spmd.sharded_tensor import (
    XLAShard,
    XLAShardedTensor,
)

__all__ = [
    "XLAShard",
    "XLAShardedTensor",
]
