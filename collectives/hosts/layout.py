"""Which ranks of a group are on which host, and who of them exchanges with whom; pure.

The members of a group are counted host by host here: hosts in the order in which the group names
their first rank, and the ranks of a host in the order of the group. Sums are added in that order on
every rank, so all get the same bits.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

Span = tuple[int, int]  # first element, and the one after the last


@dataclass(frozen=True, slots=True)
class Layout:
    """One group, as one of its ranks sees it.

    Attributes:
        ranks: the group, in the user's order.
        hosts: the ranks of each host.
        here: which of the hosts this one is.
        place: this rank's place among those of its host.
        lanes: how many ranks of each host have wires.
    """

    ranks: tuple[int, ...]
    hosts: tuple[tuple[int, ...], ...]
    here: int
    place: int
    lanes: int

    @property
    def local(self) -> tuple[int, ...]:
        """The ranks of this host."""
        return self.hosts[self.here]

    @property
    def lane(self) -> int | None:
        """The lane of this rank; None where it has none."""
        return self.place if self.place < self.lanes else None

    @property
    def others(self) -> list[int]:
        """The other hosts."""
        return [host for host in range(len(self.hosts)) if host != self.here]

    @property
    def order(self) -> list[int]:
        """By the count of this module: each member's position in the group."""
        return [self.ranks.index(rank) for host in self.hosts for rank in host]

    def carried(self, host: int, lane: int) -> list[int]:
        """The places of a host whose data a lane carries to other hosts as a whole."""
        return list(range(lane, len(self.hosts[host]), self.lanes))


def laid_out(ranks: tuple[int, ...], rank: int, host_of: Sequence[int]) -> Layout:
    """The layout of a group for one of its ranks; `host_of` is by rank of the world."""
    numbers = list(dict.fromkeys(host_of[one] for one in ranks))
    hosts = tuple(tuple(one for one in ranks if host_of[one] == number) for number in numbers)
    here = numbers.index(host_of[rank])
    return Layout(ranks, hosts, here, hosts[here].index(rank), min(map(len, hosts)))


def cut(span: Span, parts: int) -> list[Span]:
    """A span in this many pieces, nearly equal, the last ones shorter or empty."""
    start, stop = span
    step = -(-(stop - start) // parts)
    edges = [min(start + step * part, stop) for part in range(parts + 1)]
    return list(itertools.pairwise(edges))
