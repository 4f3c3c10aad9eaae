"""Importing this registers the `xla` backend of torch.distributed, and `pjrt://`: 1.13's name."""

from torch_xdist.ranks.c10d.process_group import (
    ProcessGroupXla,
)
from torch_xdist.torch_xla_compat.deprecation import (
    old_module,
)

old_module(__name__, "torch_xla.distributed.xla_backend")

__all__ = [
    "ProcessGroupXla",
]
