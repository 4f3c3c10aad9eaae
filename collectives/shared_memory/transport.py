"""The shared-memory transport of this process: how it becomes a rank, or each of its threads one.

`join` makes the endpoint of a process, `threads` one endpoint per device of this process. Programs
reach it through one custom call, `CALL`, whose string attribute says which collective it is.
"""

import functools
import mmap
import os
import threading
from collections.abc import Callable, Sequence

import jax.numpy as jnp
import numpy as np

from torch_xdist.collectives import ffi
from torch_xdist.collectives.errors import CollectiveError
from torch_xdist.collectives.messages import communicator
from torch_xdist.collectives.messages.local import LocalCommunicator, ThreadCommunicator
from torch_xdist.collectives.messages.message_queue import MessageQueue
from torch_xdist.collectives.messages.peers import START_S, Peers, address_of
from torch_xdist.collectives.messages.rendezvous import Rendezvous
from torch_xdist.collectives.messages.server import Handler, Request, Server
from torch_xdist.collectives.shared_memory import delivery, direct, statuses
from torch_xdist.collectives.shared_memory.array_messages import (
    ArrayMessage,
    ArrayQueue,
    PointToPoint,
)
from torch_xdist.collectives.shared_memory.endpoint import Endpoint, decoded
from torch_xdist.collectives.shared_memory.statuses import Statuses

CALL = "xdist_exchange"
_SPIN_S = 0.0001

_endpoints: dict[int | None, Endpoint] = {}
_communicators: list[ThreadCommunicator] = []


class GroupMemory:
    """The memory of this rank's groups: anonymous files, of the first rank of each group.

    Args:
        start_s: how long to wait for that rank to start.
    """

    def __init__(self, rank: int, peers: Peers, start_s: float) -> None:
        self._rank, self._peers, self._start_s = rank, peers, start_s
        self._files: dict[str, int] = {}
        self._lock = threading.Lock()

    def map(self, name: str, ranks: tuple[int, ...], size: int) -> mmap.mmap:
        """The memory of that name and size, which these ranks share."""
        if ranks[0] == self._rank:
            return mmap.mmap(self._descriptor(name, size), size)
        question = {"kind": "memory", "name": name, "bytes": size}
        what = f"the memory of {name}"
        answer = self._peers.ask(ranks[0], what, question, start_s=self._start_s)
        try:
            return mmap.mmap(answer.descriptors[0], size)
        finally:
            os.close(answer.descriptors[0])

    def answer(self, request: Request) -> None:
        """Give a file to another rank."""
        name, size = request.message["name"], request.message["bytes"]
        request.answer(descriptors=(self._descriptor(name, size),))

    def _descriptor(self, name: str, size: int) -> int:
        """Of the file, made when first asked for; it stays open as long as the process."""
        with self._lock:
            if name not in self._files:
                self._files[name] = os.memfd_create(f"torch-xdist {name}"[:200], os.MFD_CLOEXEC)
                os.ftruncate(self._files[name], size)
            return self._files[name]


def join(
    rank: int,
    world_size: int,
    job: str,
    *,
    secret: bytes = b"",
    timeout_s: float = START_S,
    on_unreadable: Callable[[], None] = lambda: None,
) -> Endpoint:
    """Become `rank` of the job on this host; returns when rank 0 is there.

    `job` must differ between jobs and between attempts of one job. The other ranks may come any
    time later.

    Args:
        secret: the job's, see `system.rank.Rank`; b"": none, then any process of this user on this
            host (not of another container) is believed.
        on_unreadable: called once for each group of ranks that cannot read each other's memory,
            and so exchange large arrays in two copies.

    Raises:
        JoinError: rank 0 did not come within `timeout_s`.
    """
    peers, arrays = Peers(job, rank, secret), ArrayQueue()
    memory = GroupMemory(rank, peers, timeout_s)
    messages = LocalCommunicator(rank, world_size, peers)
    handlers: dict[str, Handler] = {
        **messages.handlers(),
        "memory": memory.answer,
        "array": functools.partial(delivery.answer, arrays),
    }
    serve(job, rank, secret, handlers, messages.tick)
    everybody, size = tuple(range(world_size)), statuses.size_bytes(world_size)
    shared = Statuses(memory.map("statuses", everybody, size), rank)
    peers.has_started = shared.has_started
    direct.allow()
    end = Endpoint(
        rank,
        world_size,
        memory.map,
        shared,
        PointToPoint(rank, delivery.Delivery(rank, world_size, peers).deliver, arrays),
        has_ended=peers.has_ended,
        spin_s=spin_s(world_size),
        to_device=jnp.asarray,
        on_unreadable=on_unreadable,
    )
    use(end)
    communicator.use(messages)
    return end


def serve(
    job: str,
    rank: int,
    secret: bytes,
    handlers: dict[str, Handler],
    tick: Callable[[], None] = lambda: None,
) -> None:
    """Answer the other ranks of this host.

    Raises:
        CollectiveError: another process does so in the name of this rank.
    """
    try:
        Server(address_of(job, rank, secret), secret, handlers, tick)
    except OSError as error:
        raise CollectiveError(
            f"start of job {job!r}: rank {rank} is taken on this host ({error}); each process "
            "needs its own RANK, and each job its own id; end the other job or change the id"
        ) from None


def use(end: Endpoint) -> None:
    """Let the programs of this process exchange through this endpoint."""
    _endpoints[None] = end
    ffi.register(CALL, _serve)


def threads(count: int) -> list[Endpoint]:
    """One endpoint per device 0 .. count-1 of this process; each device is a rank."""
    shared: dict[str, mmap.mmap] = {}
    lock = threading.Lock()

    def memory(name: str, ranks: tuple[int, ...], size: int) -> mmap.mmap:
        with lock:
            if name not in shared:
                shared[name] = mmap.mmap(-1, size)
            return shared[name]

    everybody = tuple(range(count))
    size = statuses.size_bytes(count)
    queues = [ArrayQueue() for _ in everybody]
    ends = [
        Endpoint(
            rank,
            count,
            memory,
            Statuses(memory("statuses", everybody, size), rank),
            PointToPoint(rank, functools.partial(_put_copies, queues, rank), queues[rank]),
        )
        for rank in everybody
    ]
    rendezvous, messages = Rendezvous(), [MessageQueue() for _ in everybody]
    _communicators[:] = [ThreadCommunicator(rank, rendezvous, messages) for rank in everybody]
    _endpoints.clear()
    _endpoints.update({end.rank: end for end in ends})
    ffi.register(CALL, _serve)
    return ends


def _put_copies(queues: Sequence[ArrayQueue], source: int, message: ArrayMessage) -> None:
    """Put a message into the queues of the other threads."""
    for rank, queue in enumerate(queues):
        if rank != source:
            queue.put(message.copy())


def set_rank_of_thread(rank: int | None) -> None:
    """Let this thread send messages as `rank` of the world that `threads` made; None: as nobody."""
    communicator.use(None if rank is None else _communicators[rank], thread_only=True)


def endpoint(device: int | None = None) -> Endpoint:
    """The endpoint of this process, or of one of its devices. Raises CollectiveError."""
    found = _endpoints.get(None) or _endpoints.get(device)
    if found is None:
        raise CollectiveError(
            f"collective on device {device}: this process has not joined a world with the host "
            "transport; call shared_memory.transport.join or threads first"
        )
    return found


def error_behind(error: BaseException) -> BaseException | None:
    """The error of a collective of this process that an error of the runtime stands for.

    JAX turns it into an error of its own, of one class or another, where a value is read.
    """
    found = (end.error_behind(error) for end in _endpoints.values())
    return next((own for own in found if own is not None), None)


def spin_s(ranks: int) -> float:
    """How long a rank looks before it sleeps, where this many are on this host."""
    # Looking instead of sleeping helps only a rank that has a core of its own.
    return _SPIN_S if ranks <= (os.cpu_count() or 1) else 0.0


def _serve(inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray], spec: bytes, device: int):
    # The last operand and result is the token that keeps the collectives of a program in order;
    # it is the operand of the launch.
    place = int(inputs[-1][0])
    endpoint(device).run(decoded(spec), place, list(inputs[:-1]), list(outputs[:-1]))
