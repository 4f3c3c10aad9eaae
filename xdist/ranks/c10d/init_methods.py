"""The init methods xla:// and pjrt:// of torch.distributed, and groups by torch_xla's options."""

import datetime
from collections.abc import Iterator, Sequence
from typing import Any

import torch.distributed as dist

from torch_xdist import settings, world
from torch_xdist.ranks.c10d import thread_worlds


class DummyStore(dist.Store):
    """A store that holds nothing, for groups that never ask theirs."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()


def pjrt_rendezvous_handler(
    url: str, timeout: datetime.timedelta = dist.default_pg_timeout, **kwargs: Any
) -> Iterator[tuple[dist.Store, int, int]]:
    """xla:// and pjrt://: rank and size are what the launcher said; the store is of rank 0.

    Threads that are ranks share a store of their process.
    """
    here = world.current()
    if world.replica() is not None:
        yield thread_worlds.shared_store(), here.rank, here.world_size
        return
    if here.world_size == 1:
        yield dist.HashStore(), 0, 1
        return
    if settings.rehearsal():
        # No other rank is there to meet at it.
        yield dist.HashStore(), here.rank, here.world_size
        return
    yield from dist.rendezvous("env://", timeout=timeout, **kwargs)


def new_xla_process_group(
    ranks: Sequence[int] | None = None,
    timeout: datetime.timedelta = dist.default_pg_timeout,
    backend: str | None = None,
    pg_options: Any = None,
) -> Any:
    """`torch.distributed.new_group`; torch_xla's options are not needed.

    They say of which mesh the group is a part, which XLA there must know of groups that hold a part
    of the ranks.
    """
    options = None if isinstance(pg_options, dict) else pg_options
    return dist.new_group(
        None if ranks is None else list(ranks),
        timeout=timeout,
        backend=backend,
        pg_options=options,
    )


def register() -> None:
    """Make the init methods known to torch.distributed."""
    for scheme in ("xla", "pjrt"):
        dist.register_rendezvous_handler(scheme, pjrt_rendezvous_handler)
