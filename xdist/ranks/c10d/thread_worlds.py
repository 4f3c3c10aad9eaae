"""Process groups of threads that are ranks: each has torch.distributed to itself.

torch keeps the groups of a process in one record, and in one registry of names. A thread that is a
rank, and those that work for it, see a record of that rank; every other thread that of the process.
Names of groups are registered thread by thread from the first such record on.
"""

import itertools
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from torch_xdist import world
from torch_xdist.ranks import replicas
from torch_xdist.releases import patches

# What torch's class keeps in variables of its module.
_TABLES = (
    "pg_map",
    "pg_names",
    "pg_group_ranks",
    "pg_backend_config",
    "tags_to_pg",
    "pg_to_tag",
)
_of_ranks: dict[int, "_OfRank"] = {}
_stores: dict[tuple[int, int], dist.Store] = {}
# Which store a rank asks for next.
_turns: defaultdict[int, Iterator[int]] = defaultdict(itertools.count)


class _OfRank(distributed_c10d._World):
    """The groups of one rank."""

    pg_map = pg_names = pg_group_ranks = pg_backend_config = tags_to_pg = pg_to_tag = None  # type: ignore[assignment]
    group_count = 0

    def __init__(self) -> None:
        super().__init__()
        for table in _TABLES:
            setattr(self, table, {})


class _OfThread:
    """torch's record of groups, which is another one for each thread that is a rank."""

    def __init__(self, of_process: Any) -> None:
        vars(self)["of_process"] = of_process

    def __getattr__(self, name: str) -> Any:
        return getattr(self._here(), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._here(), name, value)

    def _here(self) -> Any:
        return self.of_process if world.replica() is None else _of_rank()


def _of_rank() -> _OfRank:
    """The record of this thread's rank."""
    rank = world.rank()
    if rank not in _of_ranks:
        torch._C._distributed_c10d._set_thread_isolation_mode(True)  # type: ignore[attr-defined]
    return _of_ranks.setdefault(rank, _OfRank())


def shared_store() -> dist.Store:
    """The store in which the threads of this process meet: a new one each time that they do."""
    turn = next(_turns[world.rank()])
    return _stores.setdefault((world.world_size(), turn), dist.HashStore())


def register() -> None:
    """Let every thread that becomes a rank begin without groups."""
    replicas.at_changes(_forget)
    here = world.replica()
    if here is not None:  # This thread became one before torch.distributed was asked for.
        _forget(here.rank)


def _forget(rank: int) -> None:
    patches.wrap("torch.distributed.distributed_c10d._world", _OfThread)
    _of_ranks.pop(rank, None)
