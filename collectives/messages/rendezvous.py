"""Where ranks bring small payloads under a tag: who has come waits until all others have, and then
gets what everybody brought.

The n-th call of a rank under a tag belongs with the n-th of the others, whatever else it calls in
between, so several threads of a rank may use different tags at once. One `Rendezvous` per job: rank
0 keeps it, the others reach it through its server.
"""

import functools
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from torch_xdist.collectives.errors import CollectiveError, RankLostError
from torch_xdist.collectives.groups import ranks_text
from torch_xdist.collectives.wait_report import WaitReport

_LOOK_S = 0.25

# Called once, with the payloads in the order of the ranks, or with the error that ends the wait.
Done = Callable[[list[bytes] | CollectiveError], None]


@dataclass(slots=True)
class _Arrival:
    payload: bytes
    done: Done | None  # None: told
    report: WaitReport
    since_s: float


@dataclass(slots=True)
class _Round:
    """One call of all ranks under a tag."""

    arrivals: dict[int, _Arrival] = field(default_factory=dict)


class Rendezvous:
    """The rounds of one job that are under way; what is over leaves nothing behind.

    Args:
        keeper: the rank that keeps it, which is told last: it may end the process then.
        has_ended: whether a rank is known to have ended.
    """

    def __init__(
        self, keeper: int = -1, has_ended: Callable[[int], bool] = lambda rank: False
    ) -> None:
        self._keeper, self._has_ended = keeper, has_ended
        self._rounds: dict[tuple[str, tuple[int, ...]], deque[_Round]] = {}
        self._lock, self._looking = threading.Lock(), threading.Lock()

    def exchange(self, tag: str, ranks: tuple[int, ...], rank: int, payload: bytes) -> list[bytes]:
        """Come, wait for the other `ranks`, and return everybody's payload in their order.

        Raises:
            RankLostError: one of them ended without coming.
        """
        found: list[list[bytes] | CollectiveError] = []
        is_over = threading.Event()

        def done(outcome: list[bytes] | CollectiveError) -> None:
            found.append(outcome)
            is_over.set()

        self.arrive(tag, ranks, rank, payload, done)
        while not is_over.wait(_LOOK_S):
            self.look()
        if isinstance(found[0], CollectiveError):
            raise found[0]
        return found[0]

    def arrive(
        self, tag: str, ranks: tuple[int, ...], rank: int, payload: bytes, done: Done
    ) -> bool:
        """A rank comes; `done` is called when all have. Whether that is so already.

        Raises:
            Exception: what the first `done` that failed has raised; all others were called.
        """
        now_s = time.monotonic()
        key = (tag, ranks)
        with self._lock:
            rounds = self._rounds.setdefault(key, deque())
            found = next((r for r in rounds if rank not in r.arrivals), None)
            if found is None:
                found = _Round()
                rounds.append(found)
            found.arrivals[rank] = _Arrival(payload, done, WaitReport(rank, now_s), now_s)
            if len(found.arrivals) < len(ranks):
                return False
            rounds.remove(found)
            if not rounds:
                del self._rounds[key]
        self._tell_all(found, ranks)
        return True

    def _tell_all(self, one: _Round, ranks: tuple[int, ...]) -> None:
        payloads = [one.arrivals[member].payload for member in ranks]
        failed: list[Exception] = []
        for member in sorted(ranks, key=lambda member: member == self._keeper):
            try:
                self._tell(one.arrivals[member], payloads)
            except Exception as error:
                failed.append(error)
        if failed:
            raise failed[0]

    def _tell(self, arrival: _Arrival, outcome: list[bytes] | CollectiveError) -> None:
        with self._lock:
            done, arrival.done = arrival.done, None
        if done is not None:
            done(outcome)

    def look(self) -> None:
        """Tell those who wait for a rank that has ended; report waits that last."""
        if self._looking.acquire(blocking=False):
            try:
                self._look(time.monotonic())
            finally:
                self._looking.release()

    def _look(self, now_s: float) -> None:
        with self._lock:
            waits = [(key, one) for key, rounds in self._rounds.items() for one in rounds]
        for (tag, ranks), one in waits:
            absent = [rank for rank in ranks if rank not in one.arrivals]
            lost = next((rank for rank in absent if self._has_ended(rank)), None)
            # It may have come just before it ended.
            if lost is not None and lost not in one.arrivals:
                self._fail(tag, one, lost, now_s)
            elif absent:
                for arrival in list(one.arrivals.values()):
                    arrival.report.look(now_s, functools.partial(self._place, tag, absent))

    def _fail(self, tag: str, one: _Round, lost: int, now_s: float) -> None:
        for rank, arrival in list(one.arrivals.items()):
            told = (
                f"rank {lost} has ended, while rank {rank} waited {now_s - arrival.since_s:.1f} s "
                f"in rendezvous {tag!r}; every rank must call it; look at the output of rank {lost}"
            )
            self._tell(arrival, RankLostError(told))

    def _place(self, tag: str, absent: list[int]) -> str:
        return f"rendezvous {tag!r} for {ranks_text(absent)}{self._elsewhere(absent)}"

    def _elsewhere(self, absent: list[int]) -> str:
        with self._lock:
            tags = {
                tag
                for (tag, _), rounds in self._rounds.items()
                for one in rounds
                if any(rank in one.arrivals for rank in absent)
            }
        return f" (who waits in {', '.join(map(repr, sorted(tags)))})" if tags else ""
