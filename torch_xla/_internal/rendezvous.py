"""How torch.distributed meets on the xla device."""

from torch_xdist.ranks.c10d.init_methods import (
    DummyStore,
    pjrt_rendezvous_handler,
)

__all__ = [
    "DummyStore",
    "pjrt_rendezvous_handler",
]
