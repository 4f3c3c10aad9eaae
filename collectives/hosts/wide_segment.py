"""A segment whose members are on several hosts: each host has one, and wires keep them alike."""

import functools
import mmap
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch_xdist.collectives.hosts.layout import Layout
from torch_xdist.collectives.hosts.mirror import Wire
from torch_xdist.collectives.shared_memory import algorithms
from torch_xdist.collectives.shared_memory.segment import Segment, Span, Watch, described
from torch_xdist.collectives.wait_report import WaitReport
from torch_xdist.progress import PROGRESS

SLOTS = 4
# The data of one round of a reduction, and behind it this member's share of the round before.
SHARE = algorithms.CHUNK_BYTES
_SLOT_BYTES = SHARE + SHARE // 2 + 4096


def slot_bytes(members: int) -> int:
    """What a slot of a group over several hosts holds."""
    return max(_SLOT_BYTES, algorithms.slot_bytes(members))


def size_bytes(members: int) -> int:
    """How much memory such a group takes at most on each host."""
    return Segment.size_bytes(members, slot_bytes(members), SLOTS)


class WideSegment(Segment):
    """One member's view of the memory of its group on this host.

    Args:
        memory: shared by the members of this host, `size_bytes(...)` long, zero at the start.
        local: the segment of these members alone.
        connect: makes the wire to a rank, when the group first needs it.
        watch: what is known of the members of this host.
    """

    def __init__(
        self,
        memory: mmap.mmap,
        layout: Layout,
        rank: int,
        local: Segment,
        connect: Callable[[int], Wire],
        watch: Watch,
        spin_s: float,
    ) -> None:
        self.layout, self.local = layout, local
        ranks = layout.ranks
        seen = _Seen(self, watch, frozenset(layout.local))
        place, size = ranks.index(rank), slot_bytes(len(ranks))
        super().__init__(memory, ranks, place, size, slots=SLOTS, watch=seen, spin_s=spin_s)
        # Each rank begins with another host, so that not all send to one.
        others = [(layout.here + far) % len(layout.hosts) for far in range(1, len(layout.hosts))]
        self._wires = {host: connect(layout.counterpart(host)) for host in others}

    def arrive(self, needs: Sequence[Span] = ()) -> None:
        """As `Segment.arrive`; `needs` also goes to the other hosts."""
        self.arrive_with({host: self._ranges(host, needs) for host in self._wires} if needs else {})

    def _ranges(self, host: int, needs: Sequence[Span]) -> list[Span]:
        spans = sorted({needs[member] for member in self.layout.hosts[host]})
        joined: list[Span] = []
        for start, stop in spans:
            if joined and start <= joined[-1][1]:
                joined[-1] = joined[-1][0], max(stop, joined[-1][1])
            elif start < stop:
                joined.append((start, stop))
        return joined

    def arrive_with(self, ranges: Mapping[int, Sequence[Span]]) -> None:
        """Come to the next barrier, and send these bytes of this member's slot to each host."""
        super().arrive()
        slot, report = self.slot(self.member), WaitReport(self.ranks[self.member], time.monotonic())
        try:
            for host, wire in self._wires.items():
                look = functools.partial(self._look, wire, report)
                wire.barrier(self.note, slot, ranges.get(host, ()), look)
        finally:
            PROGRESS.stop_waiting()

    def _look(self, wire: Wire, report: WaitReport) -> None:
        """A wire is full: the rank that reads it is stopped, or far away, or its host is gone."""
        now_s = time.monotonic()
        PROGRESS.look((wire.rank,), now_s)
        self.refuse_if_failed()
        member = self.ranks.index(wire.rank)
        if self.has_left(member):
            wire.close()
            raise BrokenPipeError
        place = f"{self.called()} for rank {wire.rank} to take the data"
        report.look(now_s, lambda: place)

    def fail(self, error: BaseException) -> None:
        """As `Segment.fail`, on all hosts."""
        is_first = self.fails_with(error)
        super().fail(error)
        if is_first:
            for wire in self._wires.values():
                wire.failed(*described(error))
        if is_first or self.has_failed():
            self.local.fail(error)


class _Seen:
    """What is known of the members: of those of other hosts, whether their wires have ended."""

    def __init__(self, segment: WideSegment, local: Watch, local_ranks: frozenset[int]) -> None:
        self._segment, self._local, self._local_ranks = segment, local, local_ranks
        self.pid = local.pid
        self.begin: Any = local.begin

    def has_ended(self, rank: int) -> bool:
        if rank in self._local_ranks:
            return self._local.has_ended(rank)
        return self._segment.has_left(self._segment.ranks.index(rank))
