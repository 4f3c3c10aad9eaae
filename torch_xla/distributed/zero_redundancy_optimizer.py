"""An optimizer whose state is divided between the ranks."""

from torch_xdist.ranks.zero import (
    ZeroRedundancyOptimizer,
)

__all__ = [
    "ZeroRedundancyOptimizer",
]
