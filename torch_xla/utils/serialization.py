"""`xser`: checkpoints with one file per tensor."""

from torch_xdist.serialization import (
    TensorReference,
    save,
)
from torch_xdist.serialization import (
    read as load,
)

__all__ = [
    "save",
    "load",
    "TensorReference",
]
