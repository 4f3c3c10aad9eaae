"""A board where ranks leave small messages for each other: who has posted under a tag waits until
all others have, and then reads what everybody wrote.

The n-th post of a rank under a tag belongs with the n-th of the others, whatever else they post in
between, so several threads of a rank may use different tags at once. One board per job: rank 0
keeps it, the others reach it through its doorman.
"""

import functools
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from torch_xdist.collectives.errors import RankLostError
from torch_xdist.collectives.groups import ranks_text
from torch_xdist.collectives.wait_report import WaitReport

_LOOK_S = 0.25


@dataclass(slots=True)
class _Meeting:
    posts: dict[int, bytes] = field(default_factory=dict)
    readers: int = 0


class Rendezvous:
    """The messages of one job.

    Args:
        ended: whether a rank is known to have ended.
    """

    def __init__(self, ended: Callable[[int], bool] = lambda rank: False) -> None:
        self._ended = ended
        self._meetings: dict[tuple[str, tuple[int, ...], int], _Meeting] = {}
        self._posted: Counter[tuple[str, tuple[int, ...], int]] = Counter()
        self._changed = threading.Condition()

    def exchange(self, tag: str, ranks: tuple[int, ...], rank: int, payload: bytes) -> list[bytes]:
        """PointToPoint, wait for the other `ranks`, and return everybody's payload in their order.

        Raises:
            RankLostError: one of them ended without posting.
        """
        with self._changed:
            turn = self._posted[tag, ranks, rank]
            self._posted[tag, ranks, rank] += 1
            key = (tag, ranks, turn)
            meeting = self._meetings.setdefault(key, _Meeting())
            meeting.posts[rank] = payload
            self._changed.notify_all()
            self._wait(meeting, tag, ranks, rank)
            meeting.readers += 1
            if meeting.readers == len(ranks):
                del self._meetings[key]
            return [meeting.posts[member] for member in ranks]

    def _wait(self, meeting: _Meeting, tag: str, ranks: tuple[int, ...], rank: int) -> None:
        start_s = time.monotonic()
        narrator = WaitReport(rank, start_s)
        while len(meeting.posts) < len(ranks):
            self._changed.wait(_LOOK_S)
            absent = [member for member in ranks if member not in meeting.posts]
            now_s = time.monotonic()
            for member in absent:
                if self._ended(member):
                    raise RankLostError(
                        f"rank {member} has ended, while rank {rank} waited "
                        f"{now_s - start_s:.1f} s in rendezvous {tag!r}; every rank must call it; "
                        f"look at the output of rank {member}"
                    )
            if absent:
                narrator.look(now_s, functools.partial(self._place, tag, absent))

    def _place(self, tag: str, absent: list[int]) -> str:
        return f"rendezvous {tag!r} for {ranks_text(absent)}{self._elsewhere(absent)}"

    def _elsewhere(self, absent: list[int]) -> str:
        tags = {
            key[0]
            for key, meeting in self._meetings.items()
            if any(rank in meeting.posts for rank in absent) and len(meeting.posts) < len(key[1])
        }
        return f" (who waits in {', '.join(map(repr, sorted(tags)))})" if tags else ""
