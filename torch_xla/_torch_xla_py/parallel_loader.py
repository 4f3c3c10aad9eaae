"""The name of 2019 for `torch_xla.distributed.parallel_loader`: batches come as (number, data)."""

from torch_xdist.loaders.data_parallel import (
    NumberedParallelLoader as ParallelLoader,
)

__all__ = [
    "ParallelLoader",
]
