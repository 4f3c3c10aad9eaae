"""The name of 2019 for `torch_xla.distributed.data_parallel`: batches come as (number, data)."""

from torch_xdist.loaders.data_parallel import (
    Context,
)
from torch_xdist.loaders.data_parallel import (
    NumberedDataParallel as DataParallel,
)

__all__ = [
    "Context",
    "DataParallel",
]
