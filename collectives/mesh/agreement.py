"""Do the ranks run the same collectives? Asked before a program runs over the mesh, where a
difference would be a hang inside XLA.

A rank that runs a program for the first time posts the program's collectives and waits for those of
the others. On accelerators a rank that runs a program again posts nothing at once, which would cost
each step a message; a thread posts its newest launches twice a second, so that whoever waits for it
learns that it went another way. On CPUs the ranks meet before every program: once inside, gloo
gives up on a rank that is 30 s late, and cannot be used again.
"""

import atexit
import contextlib
import json
import threading
import time
from collections import deque
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

from torch_xdist.collectives.errors import MismatchError, RankLostError
from torch_xdist.collectives.groups import ranks_text
from torch_xdist.collectives.wait_report import WaitReport

_LOOK_S = 0.5
_LOST_S = 60.0  # without a sign of life: compilations and imports may hold its threads for a while
_KEPT = 8  # a rank may launch some programs before the first one is done
# One collective: what it is (compared), and the user's file:line (shown).
Call = tuple[str, str]


class Agreement:
    """One rank's part.

    Args:
        client: the client of JAX's coordination service.
    """

    def __init__(self, rank: int, world_size: int, client: Any) -> None:
        self._rank, self._world_size, self._client = rank, world_size, client
        self._count = 0
        self._launches: deque[tuple[int, Sequence[Call]]] = deque(maxlen=_KEPT)
        self._beat = 0
        self._old = ""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._post_launches, daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def launch(self, calls: Sequence[Call], *, meets: bool) -> None:
        """Say that this rank now runs a program with these collectives.

        Args:
            meets: wait for the other ranks. True where the program is new.

        Raises:
            MismatchError: naming the ranks, and the first collective in which they differ.
            RankLostError: a rank ended, or gave no sign of life for a minute.
        """
        self._count += 1
        self._launches.append((self._count, calls))
        if not meets:
            return
        self._client.key_value_set_bytes(self._place(self._rank), json.dumps(calls).encode())
        found = [
            calls if rank == self._rank else _Wait(self._count, self._rank, rank, calls).end(self)
            for rank in range(self._world_size)
        ]
        # All have come to this program, so all are through with the one before.
        if self._old:
            self._client.key_value_delete(self._old)
        self._old = self._place(self._rank)
        for position, at in enumerate(zip_longest(*found)):
            if len({call and call[0] for call in at}) > 1:
                raise MismatchError(difference(self._count, position, at))

    def close(self) -> None:
        """End the thread, and tell the others; the client must outlive it."""
        self._stop.set()
        self._thread.join(5)

    def _place(self, rank: int) -> str:
        return f"xdist/program/{self._count}/{rank}"

    def posted_by(self, rank: int) -> list[Call] | None:
        """What `rank` runs as its program of this number; None where it does not say so soon."""
        try:
            place = self._place(rank)
            found = self._client.blocking_key_value_get_bytes(place, int(_LOOK_S * 1000))
        except RuntimeError as error:
            if "DEADLINE_EXCEEDED" not in str(error):
                raise
            return None
        return [(what, where) for what, where in json.loads(found)]

    def seen_of(self, rank: int) -> tuple[int, dict[int, list[Call]]]:
        """(a number that changes while the rank lives, -1 when it ended; its newest launches)."""
        try:
            beat, found = json.loads(self._client.key_value_try_get_bytes(_launched(rank)))
        except RuntimeError:
            return 0, {}
        launches = {count: [(what, where) for what, where in calls] for count, calls in found}
        return beat, launches

    def _post_launches(self) -> None:
        with contextlib.suppress(RuntimeError):  # the service has gone: nobody is left to be told
            while not self._stop.wait(_LOOK_S):
                self._beat += 1
                self._post(self._beat)
            self._post(-1)

    def _post(self, beat: int) -> None:
        told = json.dumps([beat, list(self._launches)]).encode()
        self._client.key_value_set_bytes(_launched(self._rank), told, allow_overwrite=True)


def _launched(rank: int) -> str:
    return f"xdist/launched/{rank}"


class _Wait:
    """One rank's wait for another one to come to a program."""

    def __init__(self, count: int, rank: int, other: int, calls: Sequence[Call]) -> None:
        self._count, self._rank, self._other = count, rank, other
        self._call = f"{calls[0][0]} ({calls[0][1]})" if calls else "no collective"
        self._start_s = self._seen_s = time.monotonic()
        self._narrator = WaitReport(rank, self._start_s)
        self._beat = 0

    def end(self, agreement: Agreement) -> Sequence[Call]:
        """What the other rank runs as its program of this number, new or not."""
        while True:
            calls = agreement.posted_by(self._other)
            if calls is not None:
                return calls
            beat, launches = agreement.seen_of(self._other)
            if self._count in launches:
                return launches[self._count]
            self._look(beat, time.monotonic())

    def _look(self, beat: int, now_s: float) -> None:
        if beat != self._beat:
            self._beat, self._seen_s = beat, now_s
        waited_s = now_s - self._start_s
        place = f"program #{self._count} with collectives, which starts with {self._call}"
        if beat < 0 or now_s - self._seen_s > _LOST_S:
            sign = "has ended" if beat < 0 else f"gave no sign of life for {_LOST_S:.0f} s"
            raise RankLostError(
                f"rank {self._other} {sign}, while rank {self._rank} waited {waited_s:.1f} s in "
                f"{place}; give every rank the same number of batches, or look at the output of "
                f"rank {self._other} for its error"
            )
        self._narrator.look(now_s, lambda: f"{place}, for rank {self._other}")


def difference(count: int, position: int, at: Sequence[Call | None]) -> str:
    """What is said where the ranks' collectives number `position` differ; `at` holds each rank's,
    None where it has no more."""
    groups: dict[str, list[int]] = {}
    for rank, call in enumerate(at):
        told = f"{call[0]} ({call[1]})" if call else "no more"
        groups.setdefault(told, []).append(rank)
    lines = "; ".join(f"{ranks_text(ranks)}: {told}" for told, ranks in groups.items())
    return (
        f"program #{count} with collectives: the ranks differ from collective #{position + 1} on: "
        f"{lines}; all ranks must record the same collectives in the same order with the same "
        "shapes and dtypes; look for a branch or a batch that differs between these ranks"
    )
