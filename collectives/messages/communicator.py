"""Small messages between ranks, from the host: rendezvous, agreement, gathering of objects.

Nothing here runs inside a program. Ranks are matched by tag: the n-th call with a tag on one rank
belongs to the n-th on the others, from any thread. Where the ranks share a host the messages go
through the ranks' servers (`local`), else through JAX's coordination service (`mesh.store`).
"""

import threading
from typing import Protocol

from torch_xdist.collectives.errors import MismatchError
from torch_xdist.collectives.groups import ranks_text
from torch_xdist.collectives.messages.message_queue import MessageQueue
from torch_xdist.progress import PROGRESS


class Communicator(Protocol):
    """One rank's way to send small messages to the others.

    Attributes:
        is_authenticated: whether only processes of this job can have sent what arrives. Where it is
            false nothing that arrives may be unpickled.
    """

    rank: int
    world_size: int
    is_authenticated: bool

    def exchange(self, tag: str, payload: bytes, ranks: tuple[int, ...]) -> list[bytes]:
        """Every rank's payload, in the order of `ranks`."""

    def send(self, target: int, tag: str, payload: bytes) -> None:
        """Send a message; does not wait for the target to receive it."""

    def receive(self, source: int | None, tag: str) -> tuple[int, bytes]:
        """The next message under `tag` from `source` (None: anybody): (source, payload)."""


class _SingleRank:
    rank, world_size, is_authenticated = 0, 1, True

    def __init__(self) -> None:
        self._messages = MessageQueue()

    def exchange(self, tag: str, payload: bytes, ranks: tuple[int, ...]) -> list[bytes]:
        return [payload]

    def send(self, target: int, tag: str, payload: bytes) -> None:
        self._messages.put(target, tag, payload)

    def receive(self, source: int | None, tag: str) -> tuple[int, bytes]:
        return self._messages.take(source, tag, lambda rank: False)


_process: Communicator = _SingleRank()
_thread = threading.local()


def use(communicator: Communicator | None, *, thread_only: bool = False) -> None:
    """Make it the one of this process, or of this thread; None: back to none."""
    global _process
    if thread_only:
        _thread.communicator = communicator
    else:
        _process = communicator or _SingleRank()


def of_thread() -> Communicator | None:
    """The communicator that this thread has of its own; None where it has none."""
    return getattr(_thread, "communicator", None)


def current() -> Communicator:
    """The communicator of this thread, else of this process, else that of a world of one."""
    return of_thread() or _process


def exchange(tag: str, payload: bytes = b"", ranks: tuple[int, ...] | None = None) -> list[bytes]:
    """Wait for all `ranks` (default: the world) and return their payloads in order.

    Raises:
        RankLostError: a rank ended without calling.
    """
    here = current()
    ranks = ranks or tuple(range(here.world_size))
    with PROGRESS.wait((rank for rank in ranks if rank != here.rank), f"rendezvous {tag!r}"):
        return here.exchange(tag, payload, ranks)


def all_gather(tag: str, number: int) -> list[int]:
    """Every rank's integer, by rank."""
    return [int(text) for text in exchange(tag, str(number).encode())]


def agree(tag: str, value: str) -> None:
    """Return when all ranks have come with the same `value`.

    Raises:
        MismatchError: naming the ranks and what each group of them brought.
    """
    held: dict[str, list[int]] = {}
    for rank, text in enumerate(exchange(tag, value.encode())):
        held.setdefault(text.decode(), []).append(rank)
    if len(held) > 1:
        told = "; ".join(f"{ranks_text(ranks)}: {text}" for text, ranks in held.items())
        raise MismatchError(f"{tag}: the ranks differ: {told}; make them equal")
