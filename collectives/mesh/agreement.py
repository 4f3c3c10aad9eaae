"""Do the ranks run the same collectives? Asked before a program runs over the mesh, where a
difference would be a hang inside XLA.

A rank that runs a program for the first time announces the program's collectives and waits for
those of the others. On accelerators a rank that runs a program again, from the same thread,
announces nothing at once, which would cost each step a message; a thread announces its newest
launches within half a second, so that whoever waits for it learns that it went another way. On CPUs
the ranks wait for each other before every program: once inside, gloo gives up on a rank that is
30 s late, and cannot be used again.
"""

import atexit
import contextlib
import json
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import NamedTuple

from torch_xdist.collectives.errors import CollectiveError, MismatchError, RankLostError
from torch_xdist.collectives.groups import ranks_text
from torch_xdist.collectives.launches import Launch, are_crossed, thread_text
from torch_xdist.collectives.mesh.key_value_store import KeyValueStore
from torch_xdist.collectives.wait_report import WaitReport
from torch_xdist.progress import PROGRESS

_LOOK_S = 0.5
# Without a sign of life: compilations and imports may hold its threads for a while.
_LOST_S = 60.0
_KEPT = 8  # a rank may launch some programs before the first one is done
# One collective: what it is (compared), and the user's file:line (shown).
Call = tuple[str, str]


class Announced(NamedTuple):
    """What a rank launches: its collectives, from which thread, and which threads it has."""

    calls: Sequence[Call]
    thread: str
    threads: Sequence[str]


class Agreement:
    """One rank's part.

    Args:
        has_ended: whether a rank is known to have ended.
    """

    def __init__(
        self,
        rank: int,
        world_size: int,
        store: KeyValueStore,
        has_ended: Callable[[int], bool] = lambda rank: False,
    ) -> None:
        self.has_ended = has_ended
        self._rank, self._world_size, self._store = rank, world_size, store
        self._launches: deque[tuple[int, Announced]] = deque(maxlen=_KEPT)
        self._is_new = False
        self._beat = 0
        self._old = ""
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=self._beat_until_the_end, name="xdist-heartbeat", daemon=True
        )
        self._thread.start()
        atexit.register(self.close)

    def launch(self, launch: Launch, calls: Sequence[Call], *, waits: bool) -> None:
        """Say that this rank now runs a program with these collectives.

        Args:
            waits: for the other ranks. True where the program is new.

        Raises:
            MismatchError: naming the ranks, and the first collective in which they differ.
            RankLostError: a rank ended, or gave no sign of life for a minute.
        """
        announced = Announced(calls, launch.thread, launch.threads)
        self._launches.append((launch.number, announced))
        self._is_new = True
        if not (waits or launch.is_of_another_thread):
            return
        place = f"xdist/program/{launch.number}"
        own = f"{place}/{self._rank}"
        self._store.put(own, json.dumps(announced).encode())
        there = {int(rank): _parsed(text) for rank, text in self._store.look_below(place).items()}
        found = [
            there.get(rank) or _Wait(launch.number, self._rank, rank, calls).end(self)
            for rank in range(self._world_size)
        ]
        # All have come to this program, so all are through with the one before.
        if self._old:
            self._store.delete(self._old)
        self._old = own
        self._compare(launch.number, found)

    @staticmethod
    def _compare(number: int, found: Sequence[Announced]) -> None:
        for position, at in enumerate(zip_longest(*[one.calls for one in found])):
            if len({call and call[0] for call in at}) > 1:
                raise MismatchError(difference(number, position, at))
        if are_crossed([one.thread for one in found], [one.threads for one in found]):
            told = "; ".join(
                f"rank {rank}: {one.calls[0][0]} ({one.calls[0][1]}){thread_text(one.thread)}"
                for rank, one in enumerate(found)
                if one.calls
            )
            raise MismatchError(
                f"program #{number} with collectives: {told}; these threads launch collectives in "
                "another order on these ranks; launch them from one thread, or let the threads "
                "take turns"
            )

    def close(self) -> None:
        """End the thread, and tell the others; the client must outlive it."""
        self._stop.set()
        self._thread.join(5)

    def announced_by(self, number: int, rank: int) -> Announced | None:
        """What `rank` runs as its program of this number; None where it does not say so soon."""
        found = self._store.get(f"xdist/program/{number}/{rank}", _LOOK_S)
        return None if found is None else _parsed(found)

    def heartbeat_of(self, rank: int) -> int:
        """A number that changes while the rank lives; -1 when it ended, 0 before it began."""
        found = self._store.look(f"xdist/heartbeat/{rank}")
        return 0 if found is None else int(found)

    def launches_of(self, rank: int) -> dict[int, Announced]:
        """Its newest launches, by their number."""
        found = self._store.look(f"xdist/launched/{rank}")
        return {} if found is None else {n: _announced(*one) for n, one in json.loads(found)}

    def _beat_until_the_end(self) -> None:
        # A service that cannot be reached for a while is no reason to stop: the others would take
        # this rank for dead.
        while not self._stop.wait(_LOOK_S):
            with contextlib.suppress(CollectiveError, RuntimeError):
                self._post(self._beat + 1)
        with contextlib.suppress(CollectiveError, RuntimeError):
            self._post(-1)

    def _post(self, beat: int) -> None:
        if self._is_new:
            self._is_new = False
            told = json.dumps(list(self._launches)).encode()
            try:
                self._store.put(f"xdist/launched/{self._rank}", told, replace=True)
            except BaseException:
                self._is_new = True
                raise
        self._store.put(f"xdist/heartbeat/{self._rank}", str(beat).encode(), replace=True)
        self._beat = beat


def _parsed(text: bytes) -> Announced:
    return _announced(*json.loads(text))


def _announced(calls: Sequence[Sequence[str]], thread: str, threads: Sequence[str]) -> Announced:
    return Announced([(what, where) for what, where in calls], thread, threads)


class _Wait:
    """One rank's wait for another one to come to a program."""

    def __init__(self, number: int, rank: int, other: int, calls: Sequence[Call]) -> None:
        self._number, self._rank, self._other = number, rank, other
        self._call = f"{calls[0][0]} ({calls[0][1]})" if calls else "no collective"
        self._start_s = self._seen_s = time.monotonic()
        self._report = WaitReport(rank, self._start_s)
        self._beat = 0

    def end(self, agreement: Agreement) -> Announced:
        """What the other rank runs as its program of this number, new or not."""
        with PROGRESS.wait((self._other,)):
            return self._end(agreement)

    def _end(self, agreement: Agreement) -> Announced:
        while True:
            # Asked before one more look: it may have announced it just before it ended.
            has_ended = agreement.has_ended(self._other)
            announced = agreement.announced_by(self._number, self._other)
            if announced is not None:
                return announced
            launches = agreement.launches_of(self._other)
            if self._number in launches:
                return launches[self._number]
            beat = -1 if has_ended else agreement.heartbeat_of(self._other)
            self._look(beat, time.monotonic())

    def _look(self, beat: int, now_s: float) -> None:
        if beat != self._beat:
            self._beat, self._seen_s = beat, now_s
        waited_s = now_s - self._start_s
        place = f"program #{self._number} with collectives, which starts with {self._call}"
        if beat < 0 or now_s - self._seen_s > _LOST_S:
            sign = "has ended" if beat < 0 else f"gave no sign of life for {_LOST_S:.0f} s"
            raise RankLostError(
                f"rank {self._other} {sign}, while rank {self._rank} waited {waited_s:.1f} s in "
                f"{place}; give every rank the same number of batches, or look at the output of "
                f"rank {self._other} for its error"
            )
        self._report.look(now_s, lambda: f"{place}, for rank {self._other}")


def difference(number: int, position: int, at: Sequence[Call | None]) -> str:
    """What is said where the ranks' collectives number `position` differ; `at` holds each rank's,
    None where it has no more."""
    groups: dict[str, list[int]] = {}
    for rank, call in enumerate(at):
        told = f"{call[0]} ({call[1]})" if call else "no more"
        groups.setdefault(told, []).append(rank)
    lines = "; ".join(f"{ranks_text(ranks)}: {told}" for told, ranks in groups.items())
    return (
        f"program #{number} with collectives: the ranks differ from collective #{position + 1} on: "
        f"{lines}; all ranks must record the same collectives in the same order with the same "
        "shapes and dtypes; look for a branch or a batch that differs between these ranks"
    )
