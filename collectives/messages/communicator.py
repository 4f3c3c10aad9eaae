"""Small messages between ranks, from the host: rendezvous, agreement, gathering of objects.

Nothing here runs inside a program. Ranks are matched by tag: the n-th call with a tag on one rank
belongs to the n-th on the others, from any thread. Where the ranks share a host the messages go
over the board of rank 0, else through JAX's coordination service.
"""

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any, Protocol

from torch_xdist.collectives.errors import CollectiveError, MismatchError
from torch_xdist.collectives.groups import ranks_text
from torch_xdist.collectives.messages.message_queue import MessageQueue


class Communicator(Protocol):
    """One rank's way to send small messages to the others."""

    rank: int
    world_size: int

    def exchange(self, tag: str, payload: bytes, ranks: tuple[int, ...]) -> list[bytes]:
        """Every rank's payload, in the order of `ranks`."""

    def send(self, target: int, subject: str, payload: bytes) -> None:
        """Send a letter; returns at once."""

    def receive(self, source: int | None, subject: str) -> tuple[int, bytes]:
        """The next letter on `subject` from `source` (None: anybody): (source, payload)."""


class LocalCommunicator:
    """Messages over a board and mailboxes.

    Args:
        post: (tag, ranks, rank, payload) -> payloads.
        mail: (target, source, subject, payload).
        take: (source, subject) -> (source, payload).
    """

    def __init__(
        self,
        rank: int,
        world_size: int,
        post: Callable[..., list[bytes]],
        mail: Callable[[int, int, str, bytes], None],
        take: Callable[[int | None, str], tuple[int, bytes]],
    ) -> None:
        self.rank, self.world_size = rank, world_size
        self._post, self._mail, self._take = post, mail, take

    def send(self, target: int, subject: str, payload: bytes) -> None:
        """Send a letter; returns when it is in the target's mailbox."""
        self._mail(target, self.rank, subject, payload)

    def receive(self, source: int | None, subject: str) -> tuple[int, bytes]:
        """The next letter on `subject` from `source` (None: anybody): (source, payload)."""
        return self._take(source, subject)

    def exchange(self, tag: str, payload: bytes, ranks: tuple[int, ...]) -> list[bytes]:
        """Every rank's payload, in the order of `ranks`."""
        return self._post(tag, ranks, self.rank, payload)


class StoreCommunicator:
    """Messages through the key-value store of JAX's coordination service.

    Args:
        client: the service's client, `jax._src.distributed.global_state.client`.
        timeout_s: how long to wait for a rank.
    """

    def __init__(self, rank: int, world_size: int, client: Any, timeout_s: float = 3600.0) -> None:
        self.rank, self.world_size = rank, world_size
        self._client, self._timeout_ms = client, int(timeout_s * 1000)
        self._turns: Counter[tuple[Any, ...]] = Counter()
        self._old: dict[tuple[str, tuple[int, ...]], str] = {}
        self._lock = threading.Lock()

    def exchange(self, tag: str, payload: bytes, ranks: tuple[int, ...]) -> list[bytes]:
        """Every rank's payload, in the order of `ranks`."""
        with self._lock:
            turn = self._turns[tag, ranks]
            self._turns[tag, ranks] += 1
        place = f"xdist/{tag}/{'-'.join(map(str, ranks))}/{turn}"
        self._client.key_value_set_bytes(f"{place}/{self.rank}", payload)
        found = [self._read(f"rendezvous {tag!r}", f"{place}/{r}", f"rank {r}") for r in ranks]
        # All have written this turn, so all have read the one before: its key is free to go.
        old = self._old.get((tag, ranks))
        if old is not None:
            self._client.key_value_delete(old)
        self._old[tag, ranks] = f"{place}/{self.rank}"
        return found

    def send(self, target: int, subject: str, payload: bytes) -> None:
        """Send a letter; returns when the store has it."""
        with self._lock:
            turn = self._turns["send", (self.rank, target), subject]
            self._turns["send", (self.rank, target), subject] += 1
        place = f"xdist-mail/{subject}/{self.rank}-{target}/{turn}"
        self._client.key_value_set_bytes(place, payload)

    def receive(self, source: int | None, subject: str) -> tuple[int, bytes]:
        """The next letter on `subject` from `source`: (source, payload)."""
        if source is None:
            raise CollectiveError(
                f"recv on {subject!r}: between hosts the source must be named; give it a rank"
            )
        with self._lock:
            turn = self._turns["receive", (source, self.rank), subject]
            self._turns["receive", (source, self.rank), subject] += 1
        place = f"xdist-mail/{subject}/{source}-{self.rank}/{turn}"
        payload = self._read(f"recv on {subject!r}", place, f"rank {source}")
        self._client.key_value_delete(place)
        return source, payload

    def post(self, subject: str, payload: bytes) -> None:
        """Leave a letter for whoever fetches this subject next; returns when the store has it."""
        place = self._place_of(subject)
        try:
            self._client.key_value_set_bytes(place, self.rank.to_bytes(4, "big") + payload)
        except RuntimeError as error:
            raise CollectiveError(
                f"send on {subject!r}: rank {self.rank} cannot ({error}); only one rank may send "
                "there, and another one receive"
            ) from None

    def fetch(self, subject: str) -> tuple[int, bytes]:
        """The next letter that somebody posts: (source, payload)."""
        place = self._place_of(subject)
        letter = self._read(f"recv on {subject!r}", place, "whoever sends there")
        self._client.key_value_delete(place)
        return int.from_bytes(letter[:4], "big"), letter[4:]

    def _place_of(self, subject: str) -> str:
        with self._lock:
            turn = self._turns["post", subject]
            self._turns["post", subject] += 1
        return f"xdist-post/{subject}/{turn}"

    def _read(self, what: str, place: str, whom: str) -> bytes:
        try:
            return self._client.blocking_key_value_get_bytes(place, self._timeout_ms)
        except RuntimeError as error:
            raise CollectiveError(
                f"{what}: {whom} did not answer rank {self.rank} ({error}); every rank must call "
                f"it; look at the output of {whom}"
            ) from None


class _Alone:
    rank, world_size = 0, 1

    def __init__(self) -> None:
        self._letters = MessageQueue()

    def exchange(self, tag: str, payload: bytes, ranks: tuple[int, ...]) -> list[bytes]:
        return [payload]

    def send(self, target: int, subject: str, payload: bytes) -> None:
        self._letters.put(target, subject, payload)

    def receive(self, source: int | None, subject: str) -> tuple[int, bytes]:
        return self._letters.take(source, subject, lambda rank: False)


_process: Communicator = _Alone()
_thread = threading.local()


def use(channel: Communicator | None, *, thread_only: bool = False) -> None:
    """Make `channel` the one of this process, or of this thread; None: back to none."""
    global _process
    if thread_only:
        _thread.channel = channel
    else:
        _process = channel or _Alone()


def current() -> Communicator:
    """The channel of this thread, else of this process, else that of a world of one."""
    return getattr(_thread, "channel", None) or _process


def store() -> StoreCommunicator:
    """The channel of a process on the mesh transport."""
    here = current()
    if not isinstance(here, StoreCommunicator):
        raise CollectiveError(
            "post: this process has not joined the mesh transport; call mesh.join first"
        )
    return here


def exchange(tag: str, payload: bytes = b"", ranks: tuple[int, ...] | None = None) -> list[bytes]:
    """Wait for all `ranks` (default: the world) and return their payloads in order.

    Raises:
        RankLostError: a rank ended without calling.
    """
    here = current()
    return here.exchange(tag, payload, ranks or tuple(range(here.world_size)))


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
