"""Tensors shared with other frameworks."""

from torch_xdist.names.dlpack import (
    from_dlpack,
    to_dlpack,
)

__all__ = [
    "to_dlpack",
    "from_dlpack",
]
