"""A wrapper that joins a module's parameters into flat ones."""

from torch_xdist.ranks.fsdp.flat_parameter import (
    FlatParameter,
    State,
)
from torch_xdist.ranks.fsdp.flat_parameter import (
    FlatParameter as FlatTypes,
)
from torch_xdist.ranks.fsdp.flatten_wrapper import (
    XlaFlattenParamsWrapper,
    replace_by_prefix_,
)

__all__ = [
    "FlatParameter",
    "FlatTypes",
    "State",
    "XlaFlattenParamsWrapper",
    "replace_by_prefix_",
]
