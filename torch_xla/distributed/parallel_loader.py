"""`pl`: host batches to devices, ahead of the step."""

from torch_xdist.keyd_queue import (
    PerDeviceQueue,
)
from torch_xdist.loaders.mp_device import (
    MpDeviceLoader,
)
from torch_xdist.loaders.parallel import (
    ParallelLoader,
    PerDeviceLoader,
)

__all__ = [
    "MpDeviceLoader",
    "ParallelLoader",
    "PerDeviceLoader",
    "PerDeviceQueue",
]
