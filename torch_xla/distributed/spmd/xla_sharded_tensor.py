"""A device tensor that knows how it is sharded."""

from torch_xdist.spmd.sharded_tensor import (
    XLAShard,
    XLAShardedTensor,
    no_dispatch,
)

__all__ = [
    "XLAShard",
    "XLAShardedTensor",
    "no_dispatch",
]
