"""Tensors shared with other frameworks."""

from torch_xdist.torch_xla_compat.dlpack import (
    from_dlpack,
    to_dlpack,
)

__all__ = [
    "to_dlpack",
    "from_dlpack",
]
