"""Importing this registers the `xla` backend of torch.distributed, and `xla://`."""

from torch_xdist.ranks.c10d.process_group import (
    ProcessGroupXla,
)

__all__ = [
    "ProcessGroupXla",
]
