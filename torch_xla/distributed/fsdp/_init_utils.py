"""What the setting up of FSDP names."""

from torch_xdist.ranks.fsdp.flat_parameter import (
    FlatParameter,
)

__all__ = [
    "FlatParameter",
]
