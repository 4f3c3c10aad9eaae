"""A dataset kept on disk as it is read."""

from torch_xdist.files.cached_dataset import (
    CachedDataset,
)

__all__ = [
    "CachedDataset",
]
