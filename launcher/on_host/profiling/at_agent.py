"""The profiles of the ranks of a host, at its agent: asked for, kept in memory, handed out.

They wait here as files in memory until the head has fetched them, part by part, so that a slow way
to it carries beats in between. All of it runs on the loop of the agent, and nothing in it waits.
"""

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from torch_xdist.launcher.on_host.started_rank import StartedRank
from torch_xdist.system.frames import Message

OPS = ("profile", "profile_part", "profile_over")
PART_BYTES = 1 << 20
MOST_S = 60.0
# The link of a rank that is stopped must not become full: the loop would wait for it.
_MOST_UNANSWERED = 8


def of_these_alone(message: Message) -> Message:
    """One of `OPS` with what belongs to it and nothing else, from a head on another's machine.

    Raises:
        KeyError, TypeError, ValueError: it is none.
    """
    told = {"op": message["op"], "id": str(message["id"])}
    match message["op"]:
        case "profile":
            told["seconds"] = min(float(message["seconds"]), MOST_S)
            told["ranks"] = [int(rank) for rank in message["ranks"]]
            told["python_calls"] = bool(message["python_calls"])
        case "profile_part":
            told["rank"], told["at"] = int(message["rank"]), max(0, int(message["at"]))
    return told


class RankProfiles:
    """Those that the head has asked for last.

    Args:
        say: tells the head.
        ranks: of this host, by number.
    """

    def __init__(self, say: Callable[..., None], ranks: Mapping[int, StartedRank]) -> None:
        self._say, self._ranks = say, ranks
        self._id = ""
        self._asked: set[int] = set()
        # How often a rank was asked and has not answered.
        self._unanswered: Counter[int] = Counter()
        self._files: dict[int, int] = {}

    def take(self, message: Message) -> None:
        """One of `OPS`."""
        match message["op"]:
            case "profile":
                self._ask(message)
            case "profile_part" if message["id"] == self._id:
                self._hand_out(int(message["rank"]), int(message["at"]))
            case "profile_over" if message["id"] == self._id:
                self.close()

    def told(self, rank: int, message: Message, descriptors: Sequence[int]) -> None:
        """A rank answers."""
        del self._unanswered[rank]
        if message["id"] == self._id and rank in self._asked:
            self._asked.discard(rank)
            if descriptors:
                self._files[rank], *descriptors = descriptors
            self._say({**message, "rank": rank})
        for fd in descriptors:
            os.close(fd)

    def ended(self, rank: int) -> None:
        """A rank has ended."""
        self._refuse(rank, "it ended before its profile was there")

    def close(self) -> None:
        """Give the memory back; ranks that are still at it stop, and what comes late is dropped."""
        for number in self._asked:
            rank = self._ranks.get(number)
            if rank is not None and not rank.ended and self._unanswered[number]:
                rank.link.send({"op": "profile_over", "id": self._id})
        self._id = ""
        self._asked.clear()
        for fd in self._files.values():
            os.close(fd)
        self._files.clear()

    def _ask(self, message: Message) -> None:
        self.close()
        self._id = message["id"]
        self._asked = {int(rank) for rank in message["ranks"]}
        for number in sorted(self._asked):
            rank = self._ranks.get(number)
            if rank is None or rank.process is None:
                self._refuse(number, "it has not been started yet")
            elif rank.program:
                self._refuse(number, "it is a program of its own, and runs no Python of ours")
            elif rank.ended:
                self._refuse(number, "it has ended")
            elif self._unanswered[number] >= _MOST_UNANSWERED:
                times = self._unanswered[number]
                self._refuse(number, f"it was asked {times} times, and has not answered")
            else:
                self._unanswered[number] += 1
                rank.link.send(message)

    def _refuse(self, rank: int, why: str) -> None:
        if rank in self._asked:
            self._asked.discard(rank)
            self._say({"op": "profiled", "id": self._id, "rank": rank, "why": why})

    def _hand_out(self, rank: int, at: int) -> None:
        fd = self._files.get(rank)
        data = os.pread(fd, PART_BYTES, at) if fd is not None else b""
        self._say({"op": "profile_part", "id": self._id, "rank": rank, "at": at}, data)
