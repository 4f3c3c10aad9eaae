"""One rank's end where the job has several hosts: segments of this host, and wide ones."""

import functools
import json
import socket
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from torch_xdist.collectives.errors import CollectiveError
from torch_xdist.collectives.hosts import mirror, reductions, wide_segment, wires
from torch_xdist.collectives.hosts.layout import laid_out
from torch_xdist.collectives.hosts.wide_segment import WideSegment
from torch_xdist.collectives.hosts.wide_statuses import WideStatuses
from torch_xdist.collectives.shared_memory import algorithms
from torch_xdist.collectives.shared_memory.endpoint import Endpoint, Spec
from torch_xdist.collectives.shared_memory.segment import Segment


class Host(NamedTuple):
    """Where a rank is: a name that its host alone has, and the address of its door."""

    name: str
    door: str


class WideEndpoint(Endpoint):
    """One rank's end.

    Args:
        hosts: by rank.
        key: by which the ranks of the job know each other.
        others: as of `Endpoint`.
    """

    statuses: WideStatuses

    def __init__(
        self, hosts: Sequence[Host], key: bytes, pid: int, *others: Any, **options: Any
    ) -> None:
        super().__init__(*others, **options)
        self._hosts, self._key, self._pid = hosts, key, pid
        self._names = [host.name for host in hosts]

    def is_local(self, rank: int) -> bool:
        """Whether a rank is on this host."""
        return self._names[rank] == self._names[self.rank]

    def came_to(self, ranks: tuple[int, ...]) -> int:
        """To how many barriers of a group this rank has come."""
        found = self._segments.get(ranks)
        return found.barriers if found else 0

    def begin(self, ranks: tuple[int, ...], call: str) -> Callable[[int], str]:
        """As `Endpoint.begin`."""
        self.statuses.place = ranks, self.came_to(ranks)
        return super().begin(ranks, call)

    def _segment(self, ranks: tuple[int, ...]) -> Segment:
        if all(map(self.is_local, ranks)):
            return super()._segment(ranks)
        if ranks not in self._segments:
            self._segments[ranks] = self._wide_segment(ranks)
        return self._segments[ranks]

    def _wide_segment(self, ranks: tuple[int, ...]) -> WideSegment:
        layout = laid_out(ranks, self.rank, self._names)
        local, size = layout.local, algorithms.slot_bytes(len(layout.local))
        inside = Segment(
            self._memory(f"{_name(ranks)} inside", local, Segment.size_bytes(len(local), size)),
            local,
            layout.place,
            size,
            watch=_Inside(self, ranks),
            spin_s=self._spin_s,
        )
        connect = functools.partial(self._connect, ranks)
        memory = self._wide_memory(ranks, local)
        return WideSegment(memory, layout, self.rank, inside, connect, self, self._spin_s)

    def _wide_memory(self, ranks: tuple[int, ...], local: tuple[int, ...]) -> Any:
        return self._memory(_name(ranks), local, wide_segment.size_bytes(len(ranks)))

    def _connect(self, ranks: tuple[int, ...], other: int) -> mirror.Wire:
        hello = {"rank": self.rank, "pid": self._pid, "ranks": ranks}
        door = self._hosts[other].door
        sock = wires.dial(self.rank, other, door, self._key, hello)
        return mirror.Wire(other, sock)

    def welcome(self, sock: socket.socket, hello: wires.Hello) -> None:
        """Play the part of a rank of another host, whose wire this is, until it ends."""
        rank, ranks = int(hello["rank"]), tuple(map(int, hello["ranks"]))
        known = range(self.world_size)
        if rank not in ranks or self.is_local(rank) or not set(ranks) <= set(known):
            return
        self.statuses.note_pid(rank, int(hello["pid"]))
        local = tuple(one for one in ranks if self.is_local(one))
        memory, size = self._wide_memory(ranks, local), wide_segment.slot_bytes(len(ranks))
        part = Segment(memory, ranks, ranks.index(rank), size, slots=wide_segment.SLOTS)
        mirror.mirror(sock, part)

    def _compute(
        self, shared: Segment, spec: Spec, xs: list[np.ndarray], outs: list[np.ndarray]
    ) -> None:
        is_small = algorithms.is_small(sum(x.nbytes for x in xs), len(shared.ranks))
        if is_small or not isinstance(shared, WideSegment):
            super()._compute(shared, spec, xs, outs)
        elif spec.op == "all_reduce":
            reductions.all_reduce(shared, spec.title, spec.reduction, xs, outs)
        elif spec.op == "reduce_scatter":
            reductions.reduce_scatter(shared, spec.title, spec.reduction, xs[0], outs[0])
        else:
            super()._compute(shared, spec, xs, outs)


class _Inside:
    """What the segment of a wide group's ranks of this host knows of them.

    A rank that waits in it waits in the group, not elsewhere.
    """

    def __init__(self, end: WideEndpoint, group: tuple[int, ...]) -> None:
        self._end, self._group = end, group
        self.pid, self.has_ended = end.pid, end.has_ended

    def begin(self, ranks: tuple[int, ...], call: str) -> Callable[[int], str]:
        self._end.begin(self._group, call)
        return lambda rank: ""


def _name(ranks: tuple[int, ...]) -> str:
    return f"group {','.join(map(str, ranks))}"


def packed(hosts: Sequence[Host]) -> bytes:
    """Hosts as the ranks tell each other of them."""
    return json.dumps(hosts).encode()


def unpacked(text: bytes) -> list[Host]:
    """What `packed` wrote.

    Raises:
        CollectiveError: it is something else.
    """
    try:
        return [Host(*host) for host in json.loads(text)]
    except (ValueError, TypeError):
        raise CollectiveError(
            f"start: a rank told {text[:80]!r} of its host, which no rank of this release does; "
            "install the same release on all hosts"
        ) from None
