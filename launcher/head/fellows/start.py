"""The start of the ranks of one host among others that each start their own.

Host 0 serves what the ranks meet at and tells the others where, when all hosts are there; these try
their way to it, and then all start their ranks.
"""

from dataclasses import replace
from typing import Any

from torch_xdist.launcher.facts import settings
from torch_xdist.launcher.facts.errors import HostError
from torch_xdist.launcher.facts.job import Job
from torch_xdist.launcher.facts.placement import Meeting
from torch_xdist.launcher.head.fellows.fellows import Fellows, NoFellows
from torch_xdist.launcher.head.hosts import Hosts, HostState
from torch_xdist.launcher.head.start import REACH_S, Start


class StartAmongFellows(Start):
    """The start of one attempt on one of several hosts; see `Start`."""

    def __init__(self, fellows: Fellows, *args: Any) -> None:
        super().__init__(*args)
        self._fellows, self._part = fellows, fellows.part
        self._is_known = self._is_going = False

    def absent_names(self) -> list[str]:
        """The hosts that have not come, where this one's own agent has."""
        if self._hosts[0].facts is None:
            return super().absent_names()
        return [self._part.called(host).removeprefix("host ") for host in self._fellows.absent()]

    def first_absent(self) -> int | None:
        """The first rank of this host: those of others are not in sight here."""
        return self._job.ranks().start

    def absent_ranks(self, here: list[int]) -> list[int]:
        """Those of the hosts that have not come; of this one, where all have."""
        missing = [self._fellows.ranks_of(host) for host in self._fellows.absent()]
        return [rank for ranks in missing for rank in ranks] or here

    def _begin_meeting(self) -> None:
        if self._fellows.is_first:
            super()._begin_meeting()
        else:
            self._is_known = True
            self.go_on()

    def serve(self, address: str) -> None:
        """Host 0 serves what the ranks meet at."""
        self._meeting = replace(self._meeting, coordinator=address)
        self._is_known = True
        self.go_on()

    def go_on(self) -> None:
        """What can be done now that another host has said something."""
        if self._is_going or not self._is_known or not self._fellows.are_all_present:
            return
        told = self._fellows.meeting
        if self._fellows.is_first:
            self._is_going = True
            where = self._meeting
            self._fellows.tell_meeting(where.coordinator, where.master_addr, where.master_port)
            self._start_ranks()
        elif told is not None:
            self._is_going = True
            self._meeting = replace(
                self._meeting,
                coordinator=str(told["coordinator"]),
                master_addr=str(told["addr"]),
                master_port=int(told["port"]),
            )
            order = {"address": self._meeting.coordinator, "limit_s": REACH_S}
            self._hosts[0].send({"op": "reach", **order}, b"")

    def reach(self, state: HostState, why_not: str) -> None:
        """What this host's agent says of its way to host 0.

        Raises:
            HostError: there is none.
        """
        if why_not:
            raise HostError(
                f"{self._part.called(self._part.host_index)} cannot reach {self._part.called(0)} "
                f"at {self._meeting.coordinator} ({why_not}); hosts must reach each other on any "
                "port: open the firewall between them"
            )
        self._start_ranks()


def start_of(
    fellows: NoFellows, job: Job, number: int, hosts: Hosts, meeting: Meeting, *told: Any
) -> Start:
    """The start of one attempt, with other hosts' heads or without."""
    if not isinstance(fellows, Fellows):
        return Start(job, number, hosts, meeting, *told)
    # No host can hand the others a secret that whoever listens does not get, too.
    meeting = replace(meeting, secret=settings.secret(settings.environment()))
    return StartAmongFellows(fellows, job, number, hosts, meeting, *told)
