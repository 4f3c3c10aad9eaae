"""The init methods xla:// and pjrt:// of torch.distributed, and groups by torch_xla's options."""

import datetime
import importlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch.distributed as dist

from torch_xdist import settings, world
from torch_xdist.errors import WorldError
from torch_xdist.ranks.c10d import thread_worlds


class DummyStore(dist.Store):
    """A store that holds nothing, for groups that never ask theirs."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()


class AloneStore(dist.Store):
    """A store of a rank that is compiled for a topology: what nobody has set, nobody will."""

    def __init__(self) -> None:
        super().__init__()
        self._held = dist.HashStore()

    def set(self, key: str, value: Any) -> None:
        self._held.set(key, value)

    def add(self, key: str, number: int) -> int:
        return self._held.add(key, number)

    def check(self, keys: list[str]) -> bool:
        return self._held.check(keys)

    def get(self, key: str) -> bytes:
        self.wait([key])
        return self._held.get(key)

    def wait(self, keys: list[str], timeout: Any = None) -> None:  # type: ignore[override]
        missing = [key for key in keys if not self._held.check([key])]
        if missing:
            raise WorldError(
                f"xla-run compile: torch.distributed waits for {missing[0]!r} of another rank, and"
                ' none is there; of backends only "xla" needs none'
            )


def alone_handler(url: str, **kwargs: Any) -> Iterator[tuple[dist.Store, int, int]]:
    """In the place of env://, where no other rank is there."""
    here = world.current()
    yield AloneStore(), here.rank, here.world_size


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
        yield from alone_handler(url)
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
    if settings.rehearsal():
        # torch.distributed has a function of the module's name.
        module = importlib.import_module("torch.distributed.rendezvous")
        module._rendezvous_handlers["env"] = alone_handler
