"""What every rank of the job says of itself: those of this host in memory, others in the store.

A rank says something only after it has waited for a while, so a collective that goes well writes
nothing. What comes through the store may be old: that a rank waits for this one counts only where
this one has truly not come there.
"""

import contextlib
import json
import mmap
from collections.abc import Callable

from torch_xdist.collectives.errors import CollectiveError
from torch_xdist.collectives.mesh.key_value_store import KeyValueStore
from torch_xdist.collectives.shared_memory.statuses import Status, Statuses

_PLACE = "xdist/status"
# The group's ranks, and the barrier there.
Place = tuple[tuple[int, ...], int]


class WideStatuses(Statuses):
    """One rank's view of the statuses of all.

    Attributes:
        place: where this rank waits, while it says so.

    Args:
        local: whether a rank is on this host.
        came_to: to how many barriers of a group this rank has come.
    """

    def __init__(
        self,
        memory: mmap.mmap,
        rank: int,
        local: Callable[[int], bool],
        store: KeyValueStore,
        came_to: Callable[[tuple[int, ...]], int],
    ) -> None:
        super().__init__(memory, rank)
        self.place: Place = (), 0
        self._here, self._local, self._store, self._came_to = rank, local, store, came_to
        self._count = 0

    def _set(self, status: Status) -> None:
        super()._set(status)
        self._count += 1
        told = status._replace(version=self._count, ranks=sorted(status.ranks))  # type: ignore[arg-type]
        with contextlib.suppress(CollectiveError, RuntimeError):
            text = json.dumps([told, self.place]).encode()
            self._store.put(f"{_PLACE}/{self._here}", text, replace=True)

    def versions(self) -> list[int]:
        """As `Statuses.versions`."""
        return [
            one if self._local(rank) else self.of(rank).version
            for rank, one in enumerate(super().versions())
        ]

    def of(self, rank: int) -> Status:
        """As `Statuses.of`; of a rank of another host nothing that is known to be over."""
        if self._local(rank):
            return super().of(rank)
        found = None
        with contextlib.suppress(CollectiveError, RuntimeError):
            found = self._store.look(f"{_PLACE}/{rank}")
        if found is None:
            return Status(0)
        (version, call, ranks, group, has_failed), (group_ranks, barrier) = json.loads(found)
        if self._came_to(tuple(group_ranks)) >= barrier:
            return Status(version)
        return Status(version, call, frozenset(ranks), group, has_failed)
