"""Waits for the nodes of an attempt that may begin with fewer than all: `--nnodes MIN:MAX`.

It begins when all are there, or when the wait is over and there are enough. On the head's thread,
between attempts.
"""

import time
from collections.abc import Callable, Collection

from torch_xdist.launcher.attempts.roster import LineUp, Roster
from torch_xdist.launcher.facts.job import Job

_LOOK_S = 0.1


class Gathering:
    """The nodes of one job, before each attempt.

    Args:
        there: the numbers of the nodes that are there now.
        note: shows a line.
        is_stopped: waits so many seconds; whether the job was told to stop.
    """

    def __init__(
        self,
        job: Job,
        roster: Roster,
        there: Callable[[], Collection[int]],
        note: Callable[[str], None],
        is_stopped: Callable[[float], bool],
    ) -> None:
        self._job, self._roster, self._there = job, roster, there
        self._note, self._is_stopped = note, is_stopped

    def wait(self, limit_s: float) -> LineUp | None:
        """The nodes of the next attempt; None: not enough in time, or the job was told to stop.

        Args:
            limit_s: how long there may be too few.
        """
        since_s, next_notice_s = time.monotonic(), self._job.timeouts.notice_s
        while True:
            there, waited_s = self._there(), time.monotonic() - since_s
            are_all = len(there) == len(self._job.hosts)
            if are_all or waited_s >= self._job.elastic_wait_s:
                found = self._roster.line_up(there)
                if found is not None or are_all:
                    return found
            if waited_s >= limit_s or self._is_stopped(_LOOK_S):
                return None
            if waited_s >= next_notice_s:
                next_notice_s = 3 * max(waited_s, _LOOK_S)
                self._note(f"waiting for nodes: {self.missing()}")

    def missing(self) -> str:
        """Who is there, who is not, and how many are needed."""
        there, hosts = self._there(), self._job.hosts
        absent = [host.name for number, host in enumerate(hosts) if number not in there]
        where = ":".join(self._job.way_command)
        text = (
            f"{len(there)} of {len(hosts)} are there, at least {self._job.least_hosts} are needed"
        )
        return f"{text} (not yet at {where}: {', '.join(absent)})" if absent else text
