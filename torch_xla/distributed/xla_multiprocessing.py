"""`xmp`: processes, one per device."""

from torch_xdist.launcher.ways_in.spawn import (
    spawn,
)
from torch_xdist.ranks.one_at_a_time import (
    MpModelWrapper,
    MpSerialExecutor,
)

__all__ = [
    "spawn",
    "MpModelWrapper",
    "MpSerialExecutor",
]
