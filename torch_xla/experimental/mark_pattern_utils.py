"""Marking a region as a `stablehlo.composite`."""

from torch_xdist.export.markers import (
    StableHLOCompositeBuilder,
    _get_uuid,
)

__all__ = [
    "StableHLOCompositeBuilder",
    "_get_uuid",
]
