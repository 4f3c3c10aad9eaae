"""The host transport: ranks of one host (or threads of one process) that share memory.

An `Endpoint` is one rank's end: it opens the memory of a group at the group's first collective.
`join` makes the endpoint of a process, `threads` one endpoint per device of this process. Programs
reach it through one custom call, `CALL`, whose string attribute says which collective it is; the
same compiled program therefore serves every rank.
"""

import functools
import json
import mmap
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass

import numpy as np

from torch_xdist.collectives.errors import CollectiveError
from torch_xdist.collectives.groups import Groups, group_of
from torch_xdist.collectives.messages import communicator, server
from torch_xdist.collectives.messages.message_queue import MessageQueue
from torch_xdist.collectives.messages.rendezvous import Rendezvous
from torch_xdist.collectives.messages.server import Doorman, fetch
from torch_xdist.collectives.shared_memory import algorithms, ffi, segment
from torch_xdist.collectives.shared_memory.array_messages import (
    ArrayMessage,
    ArrayQueue,
    PointToPoint,
)
from torch_xdist.collectives.shared_memory.delivery import Delivery
from torch_xdist.collectives.shared_memory.segment import Segment

CALL = "xdist_exchange"
_JOIN_TIMEOUT_S = 300.0
_SPIN_S = 0.0001
_NAP_S = 0.01
_FAILED = -1  # stands among the ranks that a recv waited for when it failed

Memory = Callable[[str, tuple[int, ...]], mmap.mmap]


@dataclass(frozen=True, slots=True)
class Spec:
    """Which collective a custom call is; the JSON of its attribute.

    Attributes:
        op: a function of `exchange`, or "send" or "recv".
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
def _decoded(text: bytes) -> Spec:
    op, title, reduction, group_lists, sources, channel, what = json.loads(text)
    found = tuple(map(tuple, group_lists)) if group_lists is not None else None
    return Spec(op, title, reduction, found, tuple(sources), channel, what)


@functools.lru_cache(maxsize=4096)
def _status(ranks: tuple[int, ...], call: str) -> bytes:
    return json.dumps([ranks, call]).encode()


class Endpoint:
    """One rank's end of the host transport.

    `where` may be set to the user's line before a program runs; messages show it.
    """

    def __init__(self, rank: int, world_size: int, memory: Memory, spin_s: float) -> None:
        self.rank, self.world_size = rank, world_size
        self.where = ""
        self.error: BaseException | None = None
        self.post: PointToPoint | None = None
        self._memory, self._spin_s = memory, spin_s
        self._segments: dict[tuple[str, tuple[int, ...]], Segment] = {}
        self._lock, self._saying = threading.Lock(), threading.Lock()
        self._seen: dict[int, int] = {}  # by rank: the version of its status at the last look

    def segment(self, ranks: tuple[int, ...] | None = None, kind: str = "program") -> Segment:
        """The shared memory of these ranks (None: all); each kind has its own, in its own order."""
        ranks = tuple(range(self.world_size)) if ranks is None else ranks
        key = (kind, ranks)
        if key not in self._segments:
            self._segments[key] = Segment(
                self._memory(f"{kind}:{','.join(map(str, ranks))}", ranks),
                ranks,
                ranks.index(self.rank),
                algorithms.slot_bytes(len(ranks)),
                pid_of=functools.partial(self._pid_of, kind, ranks),
                elsewhere=functools.partial(self._elsewhere, ranks),
                spin_s=self._spin_s,
            )
        return self._segments[key]

    def _start(self) -> Segment | None:
        return self._segments.get(("start", tuple(range(self.world_size))))

    def _pid_of(self, kind: str, ranks: tuple[int, ...], member: int) -> int:
        start = self._start()
        return start.pid(ranks[member]) if start and kind != "start" else 0

    def _elsewhere(self, ranks: tuple[int, ...], member: int) -> str:
        """The call in which that member waits for this rank in another group."""
        _, others, call = self.waits(ranks[member])
        return call if self.rank in others and tuple(others) != ranks else ""

    def waits(self, rank: int) -> tuple[int, list[int], str]:
        """(the version of this, for whom `rank` waits ([]: anybody), in which call), seen twice.

        The call is "" where it waits for nobody.
        """
        start = self._start()
        if start is None:
            return 0, [], ""
        version, text = start.status(rank)
        seen, self._seen[rank] = self._seen.get(rank), version
        return version, *(json.loads(text) if text and seen == version else ([], ""))

    def versions(self, ranks: Sequence[int]) -> dict[int, int]:
        """By rank: a number that changes whenever it says where it is."""
        start = self._start()
        return {rank: start.status(rank)[0] for rank in ranks} if start else {}

    def lost(self, rank: int) -> bool:
        """Whether `rank` came to the start and has ended."""
        start = self._start()
        return start is not None and start.ended(rank)

    def is_there(self, rank: int) -> bool:
        """Whether `rank` has come to the start."""
        start = self._start()
        return start is None or bool(start.pid(rank))

    def wait_until_started(self, rank: int) -> None:
        """Return when `rank` has come to the start."""
        while not self.is_there(rank):
            time.sleep(_NAP_S)

    def run(self, spec: Spec, xs: list[np.ndarray], outs: list[np.ndarray]) -> None:
        """Take part in one collective; blocks until the other members of the group have come."""
        with self._lock:
            try:
                if spec.op in ("send", "recv"):
                    self._send_or_receive(spec, xs, outs)
                else:
                    ranks = group_of(self.rank, spec.groups, self.world_size)
                    self.say(ranks, spec.title)
                    self._run(spec, self.segment(ranks), xs, outs)
            except BaseException as error:
                # What it was in stays said, for the rank that waits for this one elsewhere.
                self.error = error
                raise
            self.say((), "")

    def _send_or_receive(self, spec: Spec, xs: list[np.ndarray], outs: list[np.ndarray]) -> None:
        assert self.post is not None, "join and threads give every endpoint its post"
        kind = algorithms.described([*xs, *outs][:1])
        self.say((), "")
        if spec.op == "send":
            self.post.send(spec.channel, xs[0], kind, self.where)
            return
        receiving = _Receiving(self)
        try:
            self.post.receive(spec.channel, outs[0], kind, receiving)
        except BaseException:
            if receiving.is_stuck:
                self.say((_FAILED, *receiving.others), spec.title)
            raise

    def say(self, ranks: tuple[int, ...], call: str) -> None:
        """Tell the others, whatever group they wait in, where this rank is."""
        start = self._start()
        if start is not None:
            where = f" ({self.where})" if self.where else ""
            with self._saying:
                start.set_status(_status(ranks, call + where) if call else b"")

    def _run(
        self, spec: Spec, shared: Segment, xs: list[np.ndarray], outs: list[np.ndarray]
    ) -> None:
        shared.where, shared.what = self.where, spec.what
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

    def taken_error(self) -> BaseException | None:
        """The error of the last failed collective, once: what the program's error stands for."""
        error, self.error = self.error, None
        return error


class _Receiving:
    """What one recv tells the other ranks, and sees of them; a `parcels.Watch`."""

    def __init__(self, end: Endpoint) -> None:
        self._end = end
        self.is_stuck = False
        self.others = [rank for rank in range(end.world_size) if rank != end.rank]
        self._versions = end.versions(self.others)

    def waits(self, call: str) -> None:
        """Say that this rank waits for anybody to send; "": no longer."""
        self._end.say((), call)

    def stuck(self) -> list[str]:
        """Why each of the other ranks will send this one nothing; empty while one may."""
        reasons = []
        for rank, before in self._versions.items():
            version, waited_for, call = self._end.waits(rank)
            has_failed = _FAILED in waited_for
            # What failed before this recv began may have gone on since.
            is_old = has_failed and version == before
            if self._end.lost(rank):
                reasons.append(f"rank {rank} has ended")
            elif call and not is_old and (not waited_for or self._end.rank in waited_for):
                state = "failed" if has_failed else "waits"
                reasons.append(f"rank {rank} called {call} and {state} there")
            else:
                return []
        self.is_stuck = bool(reasons)
        return reasons


_endpoints: dict[int | None, Endpoint] = {}
_board = Rendezvous()
_mailboxes: list[MessageQueue] = []


def join(rank: int, world_size: int, job: str, *, timeout_s: float = _JOIN_TIMEOUT_S) -> Endpoint:
    """Become `rank` of the job on this host; returns when rank 0 is there.

    `job` must differ between jobs and between attempts of one job. The other ranks may come any
    time later.

    Raises:
        JoinError: rank 0 did not come within `timeout_s`.
    """
    board, mailbox, shelf = Rendezvous(lambda other: end.lost(other)), MessageQueue(), ArrayQueue()
    try:
        door = Doorman(job, rank, board, mailbox, shelf)
    except OSError as error:
        raise CollectiveError(
            f"start of job {job!r}: rank {rank} is taken on this host ({error}); each process "
            "needs its own RANK, and each job its own id; end the other job or change the id"
        ) from None

    def memory(name: str, ranks: tuple[int, ...]) -> mmap.mmap:
        slot_bytes = algorithms.slot_bytes(len(ranks))
        size = segment.size_bytes(len(ranks), slot_bytes)
        leader = ranks[0]
        if leader == rank:
            descriptor = door.file(name, size)
        else:
            descriptor = fetch(
                job,
                leader,
                name,
                size,
                timeout_s=timeout_s,
                lost=lambda: end.lost(leader),
            )
        return segment.mapped(descriptor, len(ranks), slot_bytes)

    end: Endpoint = Endpoint(rank, world_size, memory, _spin_s(world_size))
    end.segment(kind="start")
    hand = functools.partial(server.hand, job)
    end.post = PointToPoint(
        rank, Delivery(rank, world_size, hand, end.is_there, end.lost).deliver, shelf
    )
    _endpoints[None] = end
    ffi.register(CALL, _serve)
    communicator.use(
        communicator.LocalCommunicator(
            rank,
            world_size,
            board.exchange if rank == 0 else functools.partial(server.post, job, 0),
            functools.partial(_mail, end, job),
            functools.partial(mailbox.take, ended=end.lost),
        )
    )
    return end


def _mail(end: Endpoint, job: str, target: int, source: int, subject: str, payload: bytes) -> None:
    # Who has not come to the start yet has no door to knock at.
    end.wait_until_started(target)
    server.mail(job, target, source, subject, payload)


def threads(count: int) -> list[Endpoint]:
    """One endpoint per device 0 .. count-1 of this process; each device is a rank."""
    shared: dict[str, mmap.mmap] = {}
    lock = threading.Lock()

    def memory(name: str, ranks: tuple[int, ...]) -> mmap.mmap:
        with lock:
            if name not in shared:
                slot_bytes = algorithms.slot_bytes(len(ranks))
                shared[name] = segment.anonymous(len(ranks), slot_bytes)
            return shared[name]

    global _board
    _board = Rendezvous()
    _mailboxes[:] = [MessageQueue() for _ in range(count)]
    ends = [Endpoint(rank, count, memory, 0.0) for rank in range(count)]
    shelves = [ArrayQueue() for _ in range(count)]
    for end in ends:
        end.segment(kind="start")
        end.post = PointToPoint(
            end.rank, functools.partial(_shelve, shelves, end.rank), shelves[end.rank]
        )
    _endpoints.clear()
    _endpoints.update({end.rank: end for end in ends})
    ffi.register(CALL, _serve)
    return ends


def _shelve(shelves: Sequence[ArrayQueue], source: int, parcel: ArrayMessage) -> None:
    """Put a parcel on the shelves of the other threads."""
    for rank, shelf in enumerate(shelves):
        if rank != source:
            shelf.put(parcel.copy())


def be_thread(rank: int | None) -> None:
    """Let this thread speak as `rank` of the world that `threads` made; None: as nobody."""
    if rank is None:
        communicator.use(None, thread_only=True)
    else:
        count = _endpoints[rank].world_size
        here = communicator.LocalCommunicator(
            rank,
            count,
            _board.exchange,
            lambda target, *letter: _mailboxes[target].put(*letter),
            functools.partial(_mailboxes[rank].take, ended=lambda source: False),
        )
        communicator.use(here, thread_only=True)


def endpoint(device: int | None = None) -> Endpoint:
    """The endpoint of this process, or of one of its devices. Raises CollectiveError."""
    found = _endpoints.get(None) or _endpoints.get(device)
    if found is None:
        raise CollectiveError(
            f"collective on device {device}: this process has not joined a world with the host "
            "transport; call host.join or host.threads first"
        )
    return found


def taken_error() -> BaseException | None:
    """The error of a collective that failed in this process, once.

    JAX turns it into an error of its own, of one class or another, where a value is read.
    """
    return next((error for end in _endpoints.values() if (error := end.taken_error())), None)


def note(where: str) -> None:
    """Show `where` in the messages of the collectives that run from now on."""
    for end in _endpoints.values():
        end.where = where


def _spin_s(world_size: int) -> float:
    # Looking instead of sleeping helps only a rank that has a core of its own.
    return _SPIN_S if world_size <= (os.cpu_count() or 1) else 0.0


def _serve(inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray], spec: bytes, device: int):
    # The last operand and result is the token that keeps the collectives of a program in order.
    endpoint(device).run(_decoded(spec), list(inputs[:-1]), list(outputs[:-1]))
