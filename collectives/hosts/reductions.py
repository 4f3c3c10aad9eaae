"""Reductions of much data over several hosts: first inside each host, then between them.

Every member has a share of each round: of an all-reduce a part of a chunk, of a reduce-scatter a
part of its own row. The ranks of a host fold their host's parts of all shares, each those of some
members; what they folded goes to these members, who fold what came from the hosts, in the order of
hosts. So a link carries what one rank brings, not what all of a host do. 16-bit floats travel in
float32 between hosts, so that they are rounded once.

All-reduces need the shares of all members in the end. A barrier carries the folded shares of the
round before beside the parts of this one, and shares are copied out while the next are under way.
"""

from collections.abc import Sequence

import numpy as np

from torch_xdist.collectives.hosts.wide_segment import SHARE, WideSegment
from torch_xdist.collectives.shared_memory import algorithms
from torch_xdist.collectives.shared_memory.flat import Flat, slices
from torch_xdist.collectives.shared_memory.fold import fold, wide
from torch_xdist.collectives.shared_memory.segment import Span


class _Rounds:
    """The rounds of one reduction.

    Args:
        x: what this member brings.
        shares: by round: where the share of each member lies in `x`.
    """

    def __init__(
        self,
        segment: WideSegment,
        reduction: str,
        x: Flat,
        dtype: np.dtype,
        shares: Sequence[Sequence[Span]],
    ) -> None:
        self.segment, self.local, self.layout = segment, segment.local, segment.layout
        self.shares, self._x, self._reduction = shares, x, reduction
        self._dtype, self._wide, self.itemsize = dtype, wide(dtype), dtype.itemsize
        layout = segment.layout
        self._places = range(len(layout.hosts[layout.here]))
        self._folded = [layout.folded_at(layout.here, place) for place in self._places]
        self._folders = [layout.folder(host, segment.member) for host in range(len(layout.hosts))]

    def meet(self) -> None:
        """Wait until all have come, and check that they call the same."""
        self.segment.barrier()
        self.segment.check()

    def fold_here(self, number: int) -> None:
        """Fold this host's parts of a round into the own slot."""
        shares, starts = self.shares[number], _starts(self.shares[number])
        place, mine = self.layout.place, {}
        given = self.local.own_slot().view(self._dtype)
        for other in self._places:
            for member in self._folded[other]:
                low, high = shares[member]
                own = self._x.view(low, high) if other == place else None
                if own is None:
                    self._x.read(low, high, given[starts[member] :])
                else:
                    mine[member] = own
        slots = [given]
        if len(self._places) > 1:
            self.local.barrier()
            slots = [self.local.slot(other).view(self._dtype) for other in self._places]
        sent = self.segment.own_slot().view(self._wide)
        for member in self._folded[place]:
            part = slice(starts[member], starts[member] + shares[member][1] - shares[member][0])
            parts = [slot[part] for slot in slots]
            if member in mine:
                parts[place] = mine[member]
            fold(self._reduction, parts, sent[part])

    def fold_share(self, number: int, out: np.ndarray) -> None:
        """Fold what the hosts have made of this member's share, after the round's barrier."""
        shares, me = self.shares[number], self.segment.member
        start, size = _starts(shares)[me], shares[me][1] - shares[me][0]
        slots = [self.segment.slot(folder).view(self._wide) for folder in self._folders]
        if size:
            fold(self._reduction, [slot[start : start + size] for slot in slots], out)

    def ranges(self, number: int, host: int) -> list[Span]:
        """Which bytes of the own slot the members of a host need of a round."""
        shares, starts = self.shares[number], _starts(self.shares[number])
        size = self._wide.itemsize
        spans = []
        for member in self.layout.hosts[host]:
            low, high = shares[member]
            if member in self._folded[self.layout.place] and low < high:
                spans.append((starts[member] * size, (starts[member] + high - low) * size))
        return spans


def _starts(shares: Sequence[Span]) -> list[int]:
    """Where each share begins in a slot, in elements."""
    starts = [0]
    for low, high in shares:
        starts.append(starts[-1] + high - low)
    return starts


def all_reduce(
    segment: WideSegment,
    call: str,
    reduction: str,
    xs: Sequence[np.ndarray],
    outs: Sequence[np.ndarray],
) -> None:
    """As `algorithms.all_reduce`, of what is not small."""
    _announce(segment, call, xs)
    x, out, dtype = Flat(xs), Flat(outs), xs[0].dtype
    length, members = SHARE // wide(dtype).itemsize, len(segment.ranks)
    shares = [
        slices(start, min(start + length, x.size), members) for start in range(0, x.size, length)
    ]
    rounds = _Rounds(segment, reduction, x, dtype, shares)
    rounds.meet()
    for number in range(len(shares) + 2):
        comes = number <= len(shares)
        if number < len(shares):
            rounds.fold_here(number)
        if number:
            segment.wait()
        if 0 < number <= len(shares):
            low, high = shares[number - 1][segment.member]
            rounds.fold_share(number - 1, _share(segment.own_slot(), high - low, dtype))
        if comes:
            segment.arrive_with(_ranges(rounds, number))
        if number > 1:
            for member, (low, high) in enumerate(shares[number - 2]):
                slot = segment.slot(member, back=1 if comes else 0)
                out.write(low, _share(slot, high - low, dtype))


def _ranges(rounds: _Rounds, number: int) -> dict[int, list[Span]]:
    """What of the own slot each host needs: parts of this round, the folded share of the last."""
    segment, shares = rounds.segment, rounds.shares
    behind: list[Span] = []
    if number:
        low, high = shares[number - 1][segment.member]
        behind = [(SHARE, SHARE + (high - low) * rounds.itemsize)] if low < high else []
    return {
        host: (rounds.ranges(number, host) if number < len(shares) else []) + behind
        for host in range(len(segment.layout.hosts))
    }


def _share(slot: np.ndarray, size: int, dtype: np.dtype) -> np.ndarray:
    """Where a slot holds its member's folded share."""
    return slot[SHARE:][: size * dtype.itemsize].view(dtype)


def reduce_scatter(
    segment: WideSegment, call: str, reduction: str, x: np.ndarray, out: np.ndarray
) -> None:
    """As `algorithms.reduce_scatter`, of what is not small."""
    _announce(segment, call, [x])
    members, width = len(segment.ranks), out.size
    step = SHARE // wide(x.dtype).itemsize // members
    starts = range(0, width, step)
    shares = [
        [(width * m + start, width * m + min(start + step, width)) for m in range(members)]
        for start in starts
    ]
    rounds, flat = _Rounds(segment, reduction, Flat([x]), x.dtype, shares), out.reshape(-1)
    rounds.meet()
    for number, start in enumerate(starts):
        rounds.fold_here(number)
        hosts = range(len(segment.layout.hosts))
        segment.arrive_with({host: rounds.ranges(number, host) for host in hosts})
        segment.wait()
        rounds.fold_share(number, flat[start : start + step])


def _announce(segment: WideSegment, call: str, arrays: Sequence[np.ndarray]) -> None:
    algorithms.announce(segment, call, arrays)
    # A rank that waits there is in the same call.
    segment.local.caller = segment.caller
    algorithms.announce(segment.local, call, arrays)
