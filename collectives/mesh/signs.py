"""That a rank lives, and which programs it has launched last: told by each now and then, so that
who waits for it learns that it ended, or that it went another way.

A thread of each rank writes one value into the coordination service, twice a second in small jobs
and more seldom in large ones: the service gets at most some thousand values a second, however many
ranks there are.
"""

import atexit
import contextlib
import json
import threading
from collections import deque
from typing import NamedTuple

from torch_xdist.collectives.errors import CollectiveError
from torch_xdist.collectives.mesh.key_value_store import KeyValueStore

# Between two signs: so long, and in large jobs so many ranks each second, but not longer than that.
LEAST_S, _RANKS_PER_S, _MOST_S = 0.5, 1024, 20.0
_KEPT = 8  # a rank may launch some programs before the first one is done


class Announced(NamedTuple):
    """What a rank launches: a digest of its collectives, from which thread, which threads it has,
    and whether it waits for the others."""

    digest: str
    thread: str
    threads: tuple[str, ...]
    waits: bool

    @classmethod
    def of(cls, digest: str, thread: str, threads: list[str], waits: bool) -> "Announced":
        """As it comes out of JSON."""
        return cls(digest, thread, tuple(threads), waits)


class Sign(NamedTuple):
    """The newest sign of a rank.

    `beat` changes while it lives; -1 when it ended, 0 before it began. `launches` are its newest
    ones, by their number.
    """

    beat: int
    launches: dict[int, Announced]


def every_s(world_size: int) -> float:
    """How often each rank of a job of this size gives a sign."""
    return min(_MOST_S, max(LEAST_S, world_size / _RANKS_PER_S))


class Signs:
    """One rank's part; the thread ends with `close`, or with the process."""

    def __init__(self, rank: int, world_size: int, store: KeyValueStore) -> None:
        self._rank, self._store, self._every_s = rank, store, every_s(world_size)
        self._launches: deque[tuple[int, Announced]] = deque(maxlen=_KEPT)
        self._beat = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=self._run_until_the_end, name="xdist-heartbeat", daemon=True
        )
        self._thread.start()
        atexit.register(self.close)

    def launched(self, number: int, announced: Announced) -> None:
        """This rank launches a program: the next sign says so."""
        self._launches.append((number, announced))

    def of(self, rank: int) -> Sign:
        """The newest sign of a rank."""
        found = self._store.look(f"xdist/sign/{rank}")
        if found is None:
            return Sign(0, {})
        beat, launches = json.loads(found)
        return Sign(beat, {number: Announced.of(*one) for number, one in launches})

    def close(self) -> None:
        """End the thread, and tell the others; the client must outlive it."""
        self._stop.set()
        self._thread.join(5)

    def _run_until_the_end(self) -> None:
        # A service that cannot be reached for a while is no reason to stop: the others would take
        # this rank for dead.
        while not self._stop.wait(self._every_s):
            with contextlib.suppress(CollectiveError, RuntimeError):
                self._tell(self._beat + 1)
        with contextlib.suppress(CollectiveError, RuntimeError):
            self._tell(-1)

    def _tell(self, beat: int) -> None:
        told = json.dumps([beat, list(self._launches)]).encode()
        self._store.put(f"xdist/sign/{self._rank}", told, replace=True)
        self._beat = beat
