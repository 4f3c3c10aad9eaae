"""What the ranks of one host say in their beats, as its agent tells it: each thing once, with the
ranks that say it, and only where it is news.

In steady state the ranks of a host say the same, so the message about eight of them is one
heartbeat. A job of thousands of hosts is heard by one thread: what it reads grows with the number
of hosts, and by as little as possible with that of ranks. The head reads it in `head/sight.py`.
"""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from torch_xdist.system.frames import Message

# Of a process, those that are worth a word.
_STATES_TOLD = "TtD"
# So long a rank may wait on for another that has come, and finished with what they met for.
_RELEASE_S = 0.5
# Between these a rank goes to and fro in every step.
_IN_STEP = {"running", "waiting"}
_NOTHING: Message = {"recent": [], "waits_for": [], "state": "outside"}


class Digest:
    """That of one agent, from its ranks' start to their end."""

    def __init__(self) -> None:
        self._said: dict[int, Message] = {}
        self._told: dict[int, Message] = {}
        self._states: dict[int, str] = {}
        self._finished_s: dict[int, float] = {}

    def hear(self, rank: int, heartbeat: Message, made_s: float) -> bool:
        """A rank beats; whether the head should hear of it soon.

        That a rank has begun to wait for others is such news (one of them may have ended), and that
        it has come to its device, compiles, or has compiled.

        Args:
            made_s: when the rank said so, on this host's monotonic clock.
        """
        waits_for = heartbeat.get("waits_for", ())
        least_s = made_s - _RELEASE_S
        came = [one for one in waits_for if self._finished_s.get(one, -math.inf) >= least_s]
        if came:
            heartbeat = _without_waits(heartbeat, came)
        self._said[rank] = heartbeat
        before = self._told.get(rank, _NOTHING)
        if heartbeat.get("waits_for") and not before.get("waits_for"):
            return True
        states = {heartbeat.get("state"), before.get("state")}
        return len(states) > 1 and not states <= _IN_STEP

    def finish(self, rank: int, now_s: float) -> None:
        """A rank has finished, so who said before that it waits for it may have met it since."""
        self._finished_s[rank] = now_s
        for other, heartbeat in self._said.items():
            if rank in heartbeat.get("waits_for", ()):
                self._said[other] = _without_waits(heartbeat, [rank])

    def take(self, states: Mapping[int, str]) -> Message:
        """The message about what was heard since the last one.

        `beats`: [ranks, heartbeat] for each different one, of whose `recent` only what was not told
        before. `same`: the ranks that beat and say what they have said before. `states`: of those
        processes whose state is another one than was told.

        Args:
            states: of each process, by its rank, as the kernel's letter.
        """
        groups: dict[str, tuple[list[int], Message]] = {}
        same = []
        for rank, heartbeat in self._said.items():
            before = self._told.get(rank)
            if heartbeat == before:
                same.append(rank)
                continue
            news = _without(heartbeat, before or _NOTHING)
            groups.setdefault(json.dumps(news), ([], news))[0].append(rank)
        self._told.update(self._said)
        self._said = {}
        return {
            "op": "beats",
            "beats": [list(group) for group in groups.values()],
            "same": same,
            "states": self._news_of(states),
        }

    def _news_of(self, states: Mapping[int, str]) -> dict[int, str]:
        told = {rank: letter if letter in _STATES_TOLD else "" for rank, letter in states.items()}
        news = {rank: one for rank, one in told.items() if one != self._states.get(rank, "")}
        self._states = told
        return news


def _without_waits(heartbeat: Message, ranks: Sequence[int]) -> Message:
    left = [rank for rank in heartbeat["waits_for"] if rank not in ranks]
    return {**heartbeat, "waits_for": left}


def _without(heartbeat: Message, before: Message) -> dict[str, Any]:
    """A heartbeat without the programs that one before it has named."""
    known = before.get("recent") or [(-1, "")]
    newest = max(seq for seq, _ in known)
    recent = [[seq, mark] for seq, mark in heartbeat.get("recent", ()) if seq > newest]
    return {**heartbeat, "recent": recent}
