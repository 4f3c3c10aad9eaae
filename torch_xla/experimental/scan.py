"""A loop along a dim, compiled once."""

from torch_xdist.builder.parameters import (
    Builder,
    U,
    dynamic_slice,
    dynamic_update_slice,
    split,
)
from torch_xdist.spmd.annotations import (
    shard_as,
)
from torch_xdist.training.pytreeify import (
    pytreeify,
)
from torch_xdist.training.scan import (
    _SCAN_COMPUTATION_CACHE,
    Carry,
    Scan,
    X,
    Y,
    scan,
    tree_flatten_none,
    value_and_grad_partitioned,
)

__all__ = [
    "_SCAN_COMPUTATION_CACHE",
    "Builder",
    "Carry",
    "Scan",
    "U",
    "X",
    "Y",
    "dynamic_slice",
    "dynamic_update_slice",
    "pytreeify",
    "scan",
    "shard_as",
    "split",
    "tree_flatten_none",
    "value_and_grad_partitioned",
]
