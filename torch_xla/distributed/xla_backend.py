"""Importing this registers the `xla` backend of torch.distributed, and `xla://`."""

from torch_xdist.ranks.c10d.init_methods import (
    new_xla_process_group,
)
from torch_xdist.ranks.c10d.process_group import (
    ProcessGroupXla,
)

__all__ = [
    "ProcessGroupXla",
    "new_xla_process_group",
]
