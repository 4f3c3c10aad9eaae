"""`xser`: checkpoints with one file per tensor."""

from torch_xdist.files.serialization import (
    TensorReference,
    save,
)
from torch_xdist.files.serialization import (
    read as load,
)

__all__ = [
    "save",
    "load",
    "TensorReference",
]
