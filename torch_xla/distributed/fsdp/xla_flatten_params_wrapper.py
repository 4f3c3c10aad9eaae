"""The module between the wrapper and the user's."""

from torch_xdist.ranks.fsdp.flatten import (
    XlaFlattenParamsWrapper,
)

__all__ = [
    "XlaFlattenParamsWrapper",
]
