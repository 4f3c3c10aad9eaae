"""One rank's end of the shared memory: the segments of its groups, and what it knows of the others.

A custom call of a program arrives in `Endpoint.run`, which opens the memory of the call's group at
the group's first collective. The rank is not part of the program, so the same compiled program
serves every rank.
"""

import functools
import json
import mmap
import threading
import zlib
from collections import deque
from collections.abc import Callable
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np

from torch_xdist.collectives import ffi
from torch_xdist.collectives.errors import CollectiveError
from torch_xdist.collectives.groups import Groups, group_of
from torch_xdist.collectives.launches import Launch, Launches, thread_text
from torch_xdist.collectives.shared_memory import algorithms
from torch_xdist.collectives.shared_memory.array_messages import PointToPoint
from torch_xdist.collectives.shared_memory.segment import Caller, Segment
from torch_xdist.collectives.shared_memory.statuses import Statuses, Wait

# Gives the memory of that name and size, which these ranks share.
Memory = Callable[[str, tuple[int, ...], int], mmap.mmap]
_ERRORS_KEPT = 16


@dataclass(frozen=True, slots=True)
class Spec:
    """Which collective a custom call is; the JSON of its attribute.

    Attributes:
        op: a function of `algorithms`, or "send" or "recv".
        title: the name in messages, such as "all_reduce(sum)".
        reduction: for all_reduce and reduce_scatter.
        groups: the groups of ranks; None for all ranks. Ranks in no group take no part.
        sources: for permute: per rank of the world the rank it reads from, -1 for zeros.
        channel: for send and recv.
        what: the user's tensor and dims, where the arrays exchanged are shaped otherwise.
    """

    op: str
    title: str
    reduction: str = ""
    groups: Groups | None = None
    sources: tuple[int, ...] = ()
    channel: int = 0
    what: str = ""

    def encoded(self) -> str:
        """The attribute's text."""
        return json.dumps(astuple(self))


@functools.lru_cache(maxsize=4096)
def _exact(spec: Spec) -> bytes:
    return spec.encoded().encode()


@functools.lru_cache(maxsize=4096)
def decoded(text: bytes) -> Spec:
    """The spec that `encoded` wrote."""
    op, title, reduction, group_lists, sources, channel, what = json.loads(text)
    found = tuple(map(tuple, group_lists)) if group_lists is not None else None
    return Spec(op, title, reduction, found, tuple(sources), channel, what)


class Endpoint:
    """One rank's end.

    Args:
        has_ended: whether a rank has started and ended; None: the others are threads of this
            process, and none ends alone.
        spin_s: how long to look before sleeping; 0 where ranks share cores or the GIL.
        to_device: makes operands of launches of numpy arrays.
        on_unreadable: see `Segment`.
    """

    def __init__(
        self,
        rank: int,
        world_size: int,
        memory: Memory,
        statuses: Statuses,
        point_to_point: PointToPoint,
        *,
        has_ended: Callable[[int], bool] | None = None,
        spin_s: float = 0.0,
        to_device: Callable[[np.ndarray], Any] = np.asarray,
        on_unreadable: Callable[[], None] | None = None,
    ) -> None:
        self._on_unreadable = on_unreadable
        self.rank, self.world_size = rank, world_size
        self.statuses = statuses
        self._memory, self._has_ended, self._spin_s = memory, has_ended, spin_s
        self._point_to_point = point_to_point
        self._segments: dict[tuple[int, ...], Segment] = {}
        self._lock = threading.Lock()
        self._launches = Launches(self._explain, to_device)
        self._newest: Launch | None = None
        self._errors: deque[BaseException] = deque(maxlen=_ERRORS_KEPT)

    def launch(self, where: str) -> Launch:
        """The launch of a program, which `where` calls, around it; errors of its collectives come
        as they are.

        The program takes `Launch.operand()` as its token.
        """
        return self._launches.next(where)

    def _explain(self, error: BaseException) -> None:
        # The runtime ran the program on this thread, and made an error of its own of ours.
        own = self.error_behind(error) if isinstance(error, RuntimeError | ValueError) else None
        if own is not None and own is not error:
            raise own from None

    def error_behind(self, error: BaseException) -> BaseException | None:
        """The error of a collective that the runtime's error stands for; None: of none."""
        text = str(error)
        return next((own for own in self._errors if ffi.text_of(own) in text), None)

    def run(self, spec: Spec, place: int, xs: list[np.ndarray], outs: list[np.ndarray]) -> None:
        """Take part in one collective; blocks until the other members of the group have come.

        `place` is what `Launch.operand` holds; 0 where the program was not launched through it.
        """
        with self._lock:
            launch = self._launches.found(place)
            try:
                if spec.op in ("send", "recv"):
                    self._send_or_receive(spec, launch, xs, outs)
                else:
                    self._run(spec, launch, xs, outs)
            except BaseException as error:
                # What it was in stays said, for the rank that waits for this one elsewhere.
                self.statuses.fail()
                self._errors.append(error)
                raise
            self.statuses.clear()

    def _run(
        self, spec: Spec, launch: Launch | None, xs: list[np.ndarray], outs: list[np.ndarray]
    ) -> None:
        shared = self._segment(group_of(self.rank, spec.groups, self.world_size))
        try:
            if launch is not None:
                self._check_order(spec, launch)
            shared.caller = self._caller(spec, launch)
            self._compute(shared, spec, xs, outs)
        except BaseException as error:
            shared.fail(error)
            raise

    def _check_order(self, spec: Spec, launch: Launch) -> None:
        newest = self._newest
        if newest is None or newest.number <= launch.number:
            self._newest = launch
            return
        raise CollectiveError(
            f"{spec.title} of launch #{launch.number} ({launch.where}) comes after collectives of "
            f"launch #{newest.number} ({newest.where}): the runtime has changed the order of "
            "programs, by which the ranks match their collectives; please report this"
        )

    def _caller(self, spec: Spec, launch: Launch | None) -> Caller:
        exact = _exact(spec)
        if launch is None:
            return Caller("", spec.what, exact)
        if self._has_ended is None:
            # Each rank is a thread, and all of them are threads of one process.
            return Caller(launch.where, spec.what, exact)
        thread, threads = launch.thread, launch.threads
        return Caller(launch.where, spec.what, exact, thread, threads, thread_text(thread))

    def _compute(
        self, shared: Segment, spec: Spec, xs: list[np.ndarray], outs: list[np.ndarray]
    ) -> None:
        if spec.op == "all_reduce":
            algorithms.all_reduce(shared, spec.title, spec.reduction, xs, outs)
        elif spec.op == "reduce_scatter":
            algorithms.reduce_scatter(shared, spec.title, spec.reduction, xs[0], outs[0])
        elif spec.op == "permute":
            reads = [spec.sources[rank] for rank in shared.ranks]
            members = [shared.ranks.index(rank) if rank >= 0 else -1 for rank in reads]
            algorithms.permute(shared, spec.title, members, xs[0], outs[0])
        elif spec.op == "all_gather":
            algorithms.all_gather(shared, spec.title, xs[0], outs[0])
        else:
            algorithms.all_to_all(shared, spec.title, xs[0], outs[0])

    def _send_or_receive(
        self, spec: Spec, launch: Launch | None, xs: list[np.ndarray], outs: list[np.ndarray]
    ) -> None:
        kind = algorithms.described([*xs, *outs][:1])
        if spec.op == "send":
            where = launch.where if launch else ""
            self._point_to_point.send(spec.channel, xs[0], kind, where)
        else:
            self._point_to_point.receive(spec.channel, outs[0], kind, Receiving(self))

    def _segment(self, ranks: tuple[int, ...]) -> Segment:
        if ranks not in self._segments:
            slot_bytes = algorithms.slot_bytes(len(ranks))
            size = Segment.size_bytes(len(ranks), slot_bytes)
            self._segments[ranks] = Segment(
                self._memory(f"group {','.join(map(str, ranks))}", ranks, size),
                ranks,
                ranks.index(self.rank),
                slot_bytes,
                watch=self,
                spin_s=self._spin_s,
                on_unreadable=self._on_unreadable,
            )
        return self._segments[ranks]

    # What the segments ask, as their `Watch`.

    def pid(self, rank: int) -> int:
        """The process number of a rank, 0 until it has started."""
        return self.statuses.pid(rank)

    def has_ended(self, rank: int) -> bool:
        """Whether `rank` has started and ended."""
        return self._has_ended is not None and self._has_ended(rank)

    def begin(self, ranks: tuple[int, ...], call: str) -> Callable[[int], str]:
        """Tell the others, whatever group they wait in, that this rank waits in `call`."""
        group = zlib.crc32(repr(ranks).encode())
        wait = self.statuses.wait(ranks, call, group)
        return functools.partial(_elsewhere, wait, group)


def _elsewhere(wait: Wait, group: int, rank: int) -> str:
    status = wait.waits_for_us(rank)
    if status is None or status.group == group:
        return ""
    # A recv waits for anybody, so it may still go on, until it has failed.
    if status.has_failed:
        return f"{status.call} and failed there"
    return f"{status.call} and waits there" if status.ranks else ""


class Receiving:
    """What one recv tells the other ranks, and sees of them; an `array_messages.RecvStatus`."""

    def __init__(self, end: Endpoint) -> None:
        self._end = end
        self._others = [rank for rank in range(end.world_size) if rank != end.rank]
        self._wait: Wait | None = None

    def waits(self, call: str) -> None:
        """Say that this rank waits for anybody to send; "": no longer."""
        if call:
            self._wait = self._end.statuses.wait((), call)
        else:
            self._wait = None
            self._end.statuses.clear()

    def stuck(self) -> list[str]:
        """Why each of the other ranks will send this one nothing; empty while one may."""
        reasons = []
        for rank in self._others:
            status = self._wait.waits_for_us(rank) if self._wait else None
            if self._end.has_ended(rank):
                reasons.append(f"rank {rank} has ended")
            elif status is not None:
                state = "failed" if status.has_failed else "waits"
                reasons.append(f"rank {rank} called {status.call} and {state} there")
            else:
                return []
        return reasons
