"""Do the ranks run the same collectives? Asked before a program runs over the mesh, where a
difference would be a hang inside XLA.

A rank that runs a program for the first time announces a digest of its collectives, and waits until
one rank has seen the digests of all, and says that they are equal. This judge is the first of those
that wait, mostly rank 0: so n ranks cost the coordination service some n messages, and not n * n.
The collectives themselves are sent once by the judge, and by one rank of each side that differs.

On accelerators a rank that runs a program again, from the same thread, announces nothing at once,
which would cost each step a message; its next sign (`signs`) names its newest launches, so that
whoever waits for it learns that it went another way. On CPUs the ranks wait for each other before
every program: once inside, gloo gives up on a rank that is 30 s late, and cannot be used again.
"""

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Any

from torch_xdist.collectives.errors import MismatchError, RankLostError
from torch_xdist.collectives.groups import ranks_text
from torch_xdist.collectives.launches import Launch, are_crossed, thread_text
from torch_xdist.collectives.mesh.key_value_store import KeyValueStore
from torch_xdist.collectives.mesh.signs import Announced, Signs
from torch_xdist.collectives.wait_report import WaitReport
from torch_xdist.progress import PROGRESS

_LOOK_S = 0.5
# Without a sign of life: compilations and imports may hold its threads for a while.
_LOST_S = 60.0
# For the collectives of another side, and for what the judge makes of them.
_CALLS_S, _TEXT_S = 5.0, 60.0
_MOST_SIDES = 8
# One collective: what it is (compared), and the user's file:line (shown).
Call = tuple[str, str]


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
        self.rank, self.has_ended, self.store = rank, has_ended, store
        self.signs = Signs(rank, world_size, store)
        self._world_size = world_size
        self._old: list[str] = []

    def launch(self, launch: Launch, calls: Sequence[Call], *, waits: bool) -> None:
        """Say that this rank now runs a program with these collectives.

        Args:
            waits: for the other ranks. True where the program is new.

        Raises:
            MismatchError: naming the ranks, and the first collective in which they differ.
            RankLostError: a rank ended, or gave no sign of life for a minute.
        """
        waits = waits or launch.is_of_another_thread
        own = Announced(_digest(calls), launch.thread, tuple(launch.threads), waits)
        self.signs.launched(launch.number, own)
        if waits:
            meeting = _Meeting(self, launch.number, own, calls, self._world_size)
            used = meeting.agree()
            # All have come to this program, so all are through with the one before.
            for old in self._old:
                self.store.delete(old)
            self._old = used

    def close(self) -> None:
        """End the thread, and tell the others; the client must outlive it."""
        self.signs.close()


class _Meeting:
    """The ranks come to one program; this one's part."""

    def __init__(
        self,
        agreement: Agreement,
        number: int,
        own: Announced,
        calls: Sequence[Call],
        world_size: int,
    ) -> None:
        self.number, self.rank, self.has_ended = number, agreement.rank, agreement.has_ended
        self.call = f"{calls[0][0]} ({calls[0][1]})" if calls else "no collective"
        self.signs, self.store = agreement.signs, agreement.store
        self._own, self._calls, self._world_size = own, calls, world_size
        self._place = f"xdist/program/{number}"
        self.verdict, self.absent = f"xdist/verdict/{number}", f"xdist/absent/{number}"
        self._text, self._start_s = f"xdist/difference/{number}", time.monotonic()

    def agree(self) -> list[str]:
        """Return when all ranks are there and alike: the places that are of use until the next."""
        mine = f"{self._place}/{self.rank}"
        self.store.put(mine, json.dumps(self._own).encode())
        # Ranks for which the program is not new do not come: the first one that does is the judge.
        judge = 0
        while judge < self.rank:
            try:
                told = _Wait(self, judge).for_verdict()
            except _Lost as error:
                raise RankLostError(self._why_lost(error)) from None
            if told is not None:
                self._obey(told)
                return [mine]
            judge += 1
        self._judge()
        return [mine, self.verdict, self.absent]

    @property
    def where(self) -> str:
        """For messages: what the ranks come to."""
        return f"program #{self.number} with collectives, which starts with {self.call}"

    def _why_lost(self, lost: "_Lost") -> str:
        return (
            f"rank {lost.rank} {lost.sign}, while rank {self.rank} waited "
            f"{time.monotonic() - self._start_s:.1f} s in {self.where}; give every rank the same "
            f"number of batches, or look at the output of rank {lost.rank} for its error"
        )

    # ---- who hears the verdict -----------------------------------------------------------------

    def _obey(self, told: dict[str, Any]) -> None:
        if "lost" in told:
            raise RankLostError(self._why_lost(_Lost(told["lost"], told["sign"])))
        if sides := told.get("differ"):
            self._show_calls(sides)
            text = self.store.get(self._text, _TEXT_S)
            raise MismatchError(text.decode() if text else self._differs_from(sides))
        if text := told.get("crossed"):
            raise MismatchError(text)

    def _show_calls(self, sides: Sequence[tuple[str, int]]) -> None:
        """One rank of each side says what it runs; others of its side would say the same."""
        if [self._own.digest, self.rank] in [list(side) for side in sides]:
            self.store.put(_calls_place(self._own.digest), json.dumps(self._calls).encode())

    def _differs_from(self, sides: Sequence[tuple[str, int]]) -> str:
        ranks = ranks_text([rank for _, rank in sides])
        return (
            f"program #{self.number} with collectives: {ranks} run different ones, and the rank "
            f"that compares them has not said which; see what it printed"
        )

    # ---- the judge -----------------------------------------------------------------------------

    def _judge(self) -> None:
        """See what every rank runs, and tell all that wait."""
        try:
            found = self._gathered()
        except _Lost as error:
            self._tell({"lost": error.rank, "sign": error.sign})
            raise RankLostError(self._why_lost(error)) from None
        sides: dict[str, list[int]] = {}
        for rank, one in enumerate(found):
            sides.setdefault(one.digest, []).append(rank)
        if len(sides) > 1:
            shown = dict(list(sides.items())[:_MOST_SIDES])
            self._tell({"differ": [(digest, ranks[0]) for digest, ranks in shown.items()]})
            text = self._difference(shown, self._world_size)
            self.store.put(self._text, text.encode())
            raise MismatchError(text)
        # A rank that runs this again says only its digest.
        self.store.put(_calls_place(self._own.digest), json.dumps(self._calls).encode())
        text = self._crossed(found)
        self._tell({"crossed": text} if text else {})
        if text:
            raise MismatchError(text)

    def _tell(self, verdict: dict[str, Any]) -> None:
        self.store.put(self.verdict, json.dumps(verdict).encode())

    def _gathered(self) -> list[Announced]:
        there = self.store.look_below(self._place)
        came = {int(rank): Announced.of(*json.loads(text)) for rank, text in there.items()}
        return [
            came.get(rank) or _Wait(self, rank).for_announced() for rank in range(self._world_size)
        ]

    def announced_by(self, rank: int) -> Announced | None:
        """What `rank` runs as this program; None where it does not say so soon."""
        found = self.store.get(f"{self._place}/{rank}", _LOOK_S)
        return None if found is None else Announced.of(*json.loads(found))

    def _crossed(self, found: Sequence[Announced]) -> str:
        if not are_crossed([one.thread for one in found], [one.threads for one in found]):
            return ""
        told = "; ".join(
            f"rank {rank}: {self.call}{thread_text(one.thread)}" for rank, one in enumerate(found)
        )
        return (
            f"program #{self.number} with collectives: {told}; these threads launch collectives in "
            "another order on these ranks; launch them from one thread, or let the threads take "
            "turns"
        )

    def _difference(self, sides: dict[str, list[int]], world_size: int) -> str:
        runs = {digest: self._calls_of(digest) for digest in sides}
        rows = list(zip_longest(*runs.values()))
        different = (at for at, row in enumerate(rows) if len({one and one[0] for one in row}) > 1)
        position = next(different, 0)
        texts = [f"{call[0]} ({call[1]})" if call else "no more" for call in rows[position]]
        told = "; ".join(
            f"{ranks_text(ranks)}: {text}"
            for ranks, text in zip(sides.values(), texts, strict=True)
        )
        others = world_size - sum(map(len, sides.values()))
        rest = f"; {others} other ranks run others" if others else ""
        return (
            f"program #{self.number} with collectives: the ranks differ from collective "
            f"#{position + 1} on: {told}{rest}; all ranks must record the same collectives in the "
            "same order with the same shapes and dtypes; look for a branch or a batch that differs "
            "between these ranks"
        )

    def _calls_of(self, digest: str) -> Sequence[Call]:
        if digest == self._own.digest:
            return self._calls
        found = self.store.get(_calls_place(digest), _CALLS_S)
        if found is None:
            return [(f"collectives with the digest {digest[:8]}", "it did not say which")]
        return [(what, where) for what, where in json.loads(found)]


class _Lost(Exception):
    """A rank does not come any more; `sign` says how that is known."""

    def __init__(self, rank: int, sign: str) -> None:
        self.rank, self.sign = rank, sign


class _Wait:
    """The wait for another rank, to come or to judge; raises `_Lost` where it will not."""

    def __init__(self, meeting: _Meeting, other: int) -> None:
        self._meeting, self._other = meeting, other
        self._seen_s = time.monotonic()
        self._report = WaitReport(meeting.rank, self._seen_s)
        self._beat = 0

    def for_announced(self) -> Announced:
        """What the other rank runs as this program, new or not."""
        meeting, is_told = self._meeting, False
        with PROGRESS.wait((self._other,)):
            while True:
                # Asked before one more look: it may have announced it just before it ended.
                has_ended = meeting.has_ended(self._other)
                if (announced := meeting.announced_by(self._other)) is not None:
                    return announced
                sign = meeting.signs.of(self._other)
                if (launched := sign.launches.get(meeting.number)) is not None:
                    return launched
                if not is_told:
                    is_told = True
                    meeting.store.put(meeting.absent, str(self._other).encode(), replace=True)
                self._look(-1 if has_ended else sign.beat, self._other)

    def for_verdict(self) -> dict[str, Any] | None:
        """What the other rank judges; None where it is none of those that wait."""
        meeting, awaited = self._meeting, self._other
        while True:
            with PROGRESS.wait((awaited,)):
                has_ended = meeting.has_ended(self._other)
                found = meeting.store.get(meeting.verdict, _LOOK_S)
                if found is not None:
                    verdict: dict[str, Any] = json.loads(found)
                    return verdict
                sign = meeting.signs.of(self._other)
                launched = sign.launches.get(meeting.number)
                if launched is not None and not launched.waits:
                    return None
                absent = meeting.store.look(meeting.absent)
                awaited = self._other if absent is None else int(absent)
                self._look(-1 if has_ended else sign.beat, awaited)

    def _look(self, beat: int, awaited: int) -> None:
        now_s = time.monotonic()
        if beat != self._beat:
            self._beat, self._seen_s = beat, now_s
        if beat < 0 or now_s - self._seen_s > _LOST_S:
            sign = "has ended" if beat < 0 else f"gave no sign of life for {_LOST_S:.0f} s"
            raise _Lost(self._other, sign)
        self._report.look(now_s, lambda: f"{self._meeting.where}, for rank {awaited}")


def _digest(calls: Sequence[Call]) -> str:
    """Of what is compared."""
    return hashlib.sha256(json.dumps([what for what, _ in calls]).encode()).hexdigest()[:32]


def _calls_place(digest: str) -> str:
    return f"xdist/calls/{digest}"
