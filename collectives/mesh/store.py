"""Messages between ranks through the key-value store of JAX's coordination service."""

import json
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from urllib.parse import quote

from torch_xdist.collectives.errors import CollectiveError, RankLostError
from torch_xdist.collectives.groups import ranks_text
from torch_xdist.collectives.mesh.key_value_store import KeyValueStore
from torch_xdist.collectives.messages import communicator
from torch_xdist.collectives.messages.message_queue import MessageQueue
from torch_xdist.collectives.wait_report import WaitReport

_LOOK_S = 0.5
_TIMEOUT_S = 3600.0
_NAP_S = 0.002


class StoreCommunicator:
    """Messages of one rank; they leave nothing behind in the store once they are read.

    Args:
        has_ended: whether a rank is known to have ended.
        timeout_s: how long to wait for a rank.
    """

    def __init__(
        self,
        rank: int,
        world_size: int,
        store: KeyValueStore,
        has_ended: Callable[[int], bool] = lambda rank: False,
        timeout_s: float = _TIMEOUT_S,
    ) -> None:
        self.rank, self.world_size, self.is_authenticated = rank, world_size, store.is_sealed
        self._store, self._has_ended, self._timeout_s = store, has_ended, timeout_s
        self._sent: Counter[int] = Counter()  # by target
        self._read: Counter[int] = Counter()  # by source
        self._sent_to_any = 0
        self._messages = MessageQueue()
        self._lock = threading.Lock()
        self._reading: dict[int, threading.Lock] = defaultdict(threading.Lock)

    def exchange(self, tag: str, payload: bytes, ranks: tuple[int, ...]) -> list[bytes]:
        """Every rank's payload, in the order of `ranks`.

        The last one to read removes all. A rank that calls the same tag again waits for that: its
        own value is still there.
        """
        what = f"rendezvous {tag!r}"
        place = f"xdist/rendezvous/{quote(tag, safe='')}/{'-'.join(map(str, ranks))}"
        limit_s, nap_s = time.monotonic() + self._timeout_s, _NAP_S
        while not self._store.put(f"{place}/{self.rank}", payload):
            if time.monotonic() > limit_s:
                raise self._silent(what, "a rank that came here before")
            time.sleep(nap_s)
            nap_s = min(2 * nap_s, _LOOK_S)
        found = [
            payload if rank == self.rank else self._get(what, f"{place}/{rank}", rank)
            for rank in ranks
        ]
        if self._store.count(f"{place}/read") == len(ranks):
            self._store.delete(place)
        return found

    def send(self, target: int, tag: str, payload: bytes) -> None:
        """Send a message; returns when the store has it."""
        with self._lock:
            turn = self._sent[target]
            self._sent[target] += 1
        head = json.dumps(tag).encode()
        message = len(head).to_bytes(4, "big") + head + payload
        self._store.put(f"xdist/message/{self.rank}-{target}/{turn}", message)

    def receive(self, source: int | None, tag: str) -> tuple[int, bytes]:
        """The next message under `tag` from `source`: (source, payload)."""
        if source is None:
            raise CollectiveError(
                f"recv on {tag!r}: between hosts the source must be named; give it a rank"
            )
        # One thread reads from the store, into the queue from which all threads take.
        while True:
            found = self._messages.taken(source, tag)
            if found is not None:
                return found
            if self._reading[source].acquire(timeout=_NAP_S):
                try:
                    # It may have come while another thread was reading.
                    found = self._messages.taken(source, tag)
                    if found is not None:
                        return found
                    self._read_message(source, f"recv on {tag!r}")
                finally:
                    self._reading[source].release()

    def _read_message(self, source: int, what: str) -> None:
        place = f"xdist/message/{source}-{self.rank}/{self._read[source]}"
        message = self._get(what, place, source)
        self._store.delete(place)
        self._read[source] += 1
        start = 4 + int.from_bytes(message[:4], "big")
        self._messages.put(source, json.loads(message[4:start]), message[start:])

    def send_to_any(self, channel: str, payload: bytes) -> None:
        """Leave a message for whoever receives on this channel; returns when it is stored."""
        with self._lock:
            turn = self._sent_to_any
            self._sent_to_any += 1
        self._store.put(f"{_place(channel)}/{self.rank}/{turn:020}", payload)

    def receive_from_any(self, channel: str) -> tuple[int, bytes]:
        """The next message that a rank sends on this channel: (source, payload).

        Raises:
            CollectiveError: messages of several ranks wait there, or no rank is left to send.
        """
        what, place = f"recv on {channel!r}", _place(channel)
        others = [rank for rank in range(self.world_size) if rank != self.rank]
        limit_s, nap_s = time.monotonic() + self._timeout_s, _NAP_S
        report = WaitReport(self.rank, time.monotonic())
        while time.monotonic() < limit_s:
            # Asked before one more look: it may have sent just before it ended.
            are_over = all(map(self._has_ended, others))
            found = self._store.look_below(place)
            if found:
                return self._first_of(channel, found)
            if are_over:
                raise RankLostError(
                    f"{what}: all other ranks have ended, and rank {self.rank} waits for one to "
                    "send there; every recv needs a send on its channel"
                )
            report.look(time.monotonic(), lambda: f"{what} for a rank to send there")
            time.sleep(nap_s)
            nap_s = min(2 * nap_s, _LOOK_S)
        raise self._silent(what, "whoever sends there")

    def _first_of(self, channel: str, found: dict[str, bytes]) -> tuple[int, bytes]:
        sources = sorted({int(name.partition("/")[0]) for name in found})
        if len(sources) > 1:
            raise CollectiveError(
                f"recv on {channel!r}: {ranks_text(sources)} have sent there; only one rank may "
                "send on a channel, and another one receive"
            )
        # One rank's messages: the order of their names is that in which it sent them.
        first = min(found)
        self._store.delete(f"{_place(channel)}/{first}")
        return sources[0], found[first]

    def _get(self, what: str, place: str, source: int) -> bytes:
        """The value that `source` writes."""
        whom = f"rank {source}"
        start_s = time.monotonic()
        report = WaitReport(self.rank, start_s)
        while time.monotonic() - start_s < self._timeout_s:
            # Asked before one more look: it may have written just before it ended.
            has_ended = self._has_ended(source)
            found = self._store.get(place, min(_LOOK_S, self._timeout_s))
            if found is not None:
                return found
            if has_ended:
                raise RankLostError(
                    f"{what}: rank {source} has ended, while rank {self.rank} waited "
                    f"{time.monotonic() - start_s:.1f} s for it; every rank must call it; look at "
                    f"the output of rank {source}"
                )
            report.look(time.monotonic(), lambda: f"{what} for {whom}")
        raise self._silent(what, whom)

    def _silent(self, what: str, whom: str) -> CollectiveError:
        return CollectiveError(
            f"{what}: {whom} did not answer rank {self.rank} within {self._timeout_s:.0f} s; every "
            f"rank must call it; look at the output of {whom}"
        )


def _place(channel: str) -> str:
    return f"xdist/channel/{quote(channel, safe='')}"


def current() -> StoreCommunicator:
    """The communicator of a process on the mesh transport."""
    here = communicator.current()
    if not isinstance(here, StoreCommunicator):
        raise CollectiveError(
            "send: this process has not joined the mesh transport; call mesh.transport.join first"
        )
    return here
