"""Messages between ranks through the key-value store of JAX's coordination service."""

import threading
from collections import Counter
from typing import Any

from torch_xdist.collectives.errors import CollectiveError
from torch_xdist.collectives.messages import communicator


class StoreCommunicator:
    """Messages through the key-value store of JAX's coordination service.

    Args:
        client: the service's client, `jax._src.distributed.global_state.client`.
        timeout_s: how long to wait for a rank.
    """

    def __init__(self, rank: int, world_size: int, client: Any, timeout_s: float = 3600.0) -> None:
        self.rank, self.world_size, self.is_authenticated = rank, world_size, False
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


def current() -> StoreCommunicator:
    """The communicator of a process on the mesh transport."""
    here = communicator.current()
    if not isinstance(here, StoreCommunicator):
        raise CollectiveError(
            "send: this process has not joined the mesh transport; call mesh.transport.join first"
        )
    return here
