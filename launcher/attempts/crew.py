"""The hosts of a job's attempts: settled before each, and again where one could not take part.

On the head's thread, between attempts; what `roster` decides is done here.
"""

from collections.abc import Callable, Mapping

from torch_xdist.launcher.attempts import roster
from torch_xdist.launcher.attempts.gathering import Gathering
from torch_xdist.launcher.attempts.roster import LineUp, Roster
from torch_xdist.launcher.backends.backend import Backend
from torch_xdist.launcher.facts.job import Job


class Crew:
    """The hosts of one job.

    Attributes:
        job: as the next attempt sees it.
        changes: what has become of its hosts, one text for each change.

    Args:
        note: shows a line.
        is_stopped: waits so many seconds; whether the job was told to stop.
    """

    def __init__(
        self,
        job: Job,
        backend: Backend,
        note: Callable[[str], None],
        is_stopped: Callable[[float], bool],
    ) -> None:
        self.job = self._whole = job
        self._backend, self._note, self._is_stopped = backend, note, is_stopped
        comes = job.way == "nodes"
        self._roster = Roster(job.hosts, job.spares, job.least_hosts, first_stays=comes)
        self.changes: list[str] = []
        self._gathering: Gathering | None = None
        if comes and job.least_hosts:
            self._gathering = Gathering(job, self._roster, backend.there, note, is_stopped)

    def line_up(self, limit_s: float) -> bool:
        """Settle on the hosts of the next attempt; whether there are enough.

        Args:
            limit_s: how long to wait for hosts that come by themselves.
        """
        if not self._whole.hosts:
            return True
        if self._gathering is not None:
            return self._take(self._gathering.wait(limit_s))
        return self._take(self._roster.line_up())

    def shortage(self) -> str:
        """Why there are not enough; "" where none could be replaced."""
        return self._gathering.missing() if self._gathering else self._roster.shortage()

    def goes_on_without(self, hosts: Mapping[int, str], text: str) -> bool:
        """Whether the same attempt can begin without these hosts, to which it is due that no rank
        has run; their numbers in it, and why. If so, `text` is shown.
        """
        if not hosts or not self._roster.is_flexible or self._is_stopped(0.0):
            return False
        self._roster.put_out(hosts, roster.UNFIT)
        found = self._roster.line_up(self._backend.there() if self._gathering else None)
        if found is not None:
            self._note(text)
        return self._take(found)

    def next_attempt(self, lost: Mapping[int, str]) -> None:
        """An attempt is over, in which these hosts were lost, and why; another follows."""
        self._roster.put_out(lost, roster.LOST)
        self._roster.next_attempt()

    def _take(self, found: LineUp | None) -> bool:
        if found is None:
            return False
        for text in found.news:
            self._note(text)
        self.changes += found.news
        self.job = self._whole.on(found.hosts)
        self._backend.take(found.hosts)
        return True
