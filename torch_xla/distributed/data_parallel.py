"""`dp`: one thread per device of one process, the way of 2019."""

from torch_xdist.loaders.data_parallel import (
    Context,
    DataParallel,
    ThreadResult,
)

__all__ = [
    "Context",
    "DataParallel",
    "ThreadResult",
]
