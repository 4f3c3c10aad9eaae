"""Which members of a group are on which host; pure."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Layout:
    """One group, as one of its ranks sees it. A member is a position in `ranks`.

    Attributes:
        ranks: the group, in the user's order.
        hosts: the members of each host; hosts in the order in which the group names them.
        here: which of the hosts this one is.
        place: this rank's place among the members of its host.
    """

    ranks: tuple[int, ...]
    hosts: tuple[tuple[int, ...], ...]
    here: int
    place: int

    @property
    def local(self) -> tuple[int, ...]:
        """The ranks of this host."""
        return tuple(self.ranks[member] for member in self.hosts[self.here])

    def counterpart(self, host: int) -> int:
        """The rank of another host that this rank's wire goes to; evenly over its ranks."""
        there = self.hosts[host]
        return self.ranks[there[self.place % len(there)]]

    def folded_at(self, host: int, place: int) -> list[int]:
        """The members whose share of a reduction a rank of a host folds there first."""
        count = len(self.hosts[host])
        return [
            member
            for members in self.hosts
            for other, member in enumerate(members)
            if other % count == place
        ]

    def folder(self, host: int, member: int) -> int:
        """The member of a host that folds there the share of this member."""
        place = next(members.index(member) for members in self.hosts if member in members)
        return self.hosts[host][place % len(self.hosts[host])]


def laid_out(ranks: tuple[int, ...], rank: int, host_of: Sequence[str]) -> Layout:
    """The layout of a group for one of its ranks; `host_of` is by rank of the world."""
    names = list(dict.fromkeys(host_of[one] for one in ranks))
    hosts = tuple(
        tuple(member for member, one in enumerate(ranks) if host_of[one] == name) for name in names
    )
    here = names.index(host_of[rank])
    return Layout(ranks, hosts, here, hosts[here].index(ranks.index(rank)))
