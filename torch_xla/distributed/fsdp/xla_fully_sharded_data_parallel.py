"""The wrapper class, where torch_xla has it."""

from torch_xdist.ranks.fsdp.module import (
    XlaFullyShardedDataParallel,
)

__all__ = [
    "XlaFullyShardedDataParallel",
]
