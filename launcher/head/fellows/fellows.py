"""What the head of one host knows of the other hosts, where each has a head of its own.

Such a job has no launcher: the script was started once on every host, as by `gcloud ... ssh
--worker=all`. The heads agree on where the ranks meet, and tell each other the end. All is called
on the head's thread.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from torch_xdist.launcher.facts import settings
from torch_xdist.launcher.facts.errors import ExitCode
from torch_xdist.launcher.facts.job import Job
from torch_xdist.launcher.facts.records import ranks_text
from torch_xdist.launcher.facts.settings import OFF, Timeouts
from torch_xdist.launcher.head.ending import Ending
from torch_xdist.launcher.head.fellows.links import VERSION, FellowLinks
from torch_xdist.launcher.head.sight import Seen
from torch_xdist.launcher.head.standing import standing
from torch_xdist.system.frames import Message


class NoFellows:
    """What a head asks where it leads all hosts of its job: there are no others."""

    def __init__(self, job: Job) -> None:
        self._limits = job.timeouts

    def take(self, message: Message) -> Ending | None:
        return None

    def have_all_finished(self) -> bool:
        return True

    def left_early(self, ranks: Sequence[Seen], now_s: float) -> Ending | None:
        return None

    def limits(self, now_s: float) -> Timeouts:
        return self._limits

    def tell_end(self, exit_code: int, text: str) -> None:
        pass

    def have_left(self) -> bool:
        return True

    def close(self) -> None:
        pass


class Fellows(NoFellows):
    """The other hosts of a job.

    Args:
        post: called, on another thread, with messages for `take`.

    Raises:
        HostError: host 0 cannot listen where the others look for it.
        SettingError: XLA_RUN_SECRET cannot be one.
    """

    def __init__(self, job: Job, post: Callable[[Message], None]) -> None:
        super().__init__(job)
        assert job.part is not None
        self._job, self.part = job, job.part
        hello = {
            "version": VERSION,
            "hosts": job.part.hosts,
            "ranks": job.nprocs,
            "device": job.device,
        }
        limits, secret = job.timeouts, settings.secret(settings.environment())
        self._links = FellowLinks(job.part, hello, post, limits.beat_s, limits.lost_s, secret)
        self._present = {job.part.host_index}
        self._finished: set[int] = set()
        self._left: set[int] = set()
        self._has_told_end = False
        self._alone_since_s = self._finished_s = 0.0
        self._alone_s = OFF
        self.meeting: Message | None = None
        """What host 0 has said of where the ranks meet."""

    @property
    def is_first(self) -> bool:
        """Whether this host is host 0, where the ranks meet."""
        return self.part.host_index == 0

    @property
    def are_all_present(self) -> bool:
        return len(self._present) == self.part.hosts

    def have_all_finished(self) -> bool:
        """Whether the ranks of all hosts have; those of this one have, and the others hear it."""
        if self.part.host_index not in self._finished:
            self._finished.add(self.part.host_index)
            self._links.say({"say": "finished"})
        return len(self._finished) == self.part.hosts

    def absent(self) -> list[int]:
        """The hosts that are not known to be there; only host 0 before it has said anything."""
        known = self.is_first or 0 in self._present
        hosts = range(self.part.hosts) if known else (0,)
        return [host for host in hosts if host not in self._present]

    def ranks_of(self, host: int) -> range:
        """The ranks of a host."""
        return range(host * self._job.nprocs, (host + 1) * self._job.nprocs)

    def take(self, message: Message) -> Ending | None:
        """Remember what another host says; how this one ends, where that one has failed."""
        host, say = int(message["host"]), message["say"]
        if say == "present":
            self._present = {self.part.host_index, *map(int, message["hosts"])}
        elif say == "meet":
            self.meeting = message
        elif say == "finished":
            self._finished.add(host)
        elif say == "left":
            self._left.add(host)
        elif say == "over":
            return self._ending(host, message)
        return None

    def _ending(self, host: int, message: Message) -> Ending | None:
        code, told = int(message["exit_code"]), self._told(host)
        if lost := message.get("lost"):
            return Ending(code, text=f"{told} was lost: {lost}")
        if code == 0:
            return None
        if message.get("is_own"):
            return Ending(code, text=f"{told} has ended the job: {message['text']}")
        return Ending(code, text=str(message["text"]))

    def _told(self, host: int) -> str:
        return f"{self.part.called(host)}, {ranks_text(self.ranks_of(host))},"

    def left_early(self, ranks: Sequence[Seen], now_s: float) -> Ending | None:
        """How this host ends, where another has finished and all ranks here wait, for too long."""
        gone = sorted(self._finished)
        running = [seen for seen in ranks if seen.finished_s is None and seen.exit_code is None]
        states = [seen.beat.state if seen.beat else "" for seen in running]
        if not gone or not running or set(states) != {"waiting"}:
            self._alone_since_s = now_s
        since_s = max([self._alone_since_s, *(seen.changed_s for seen in running)])
        if now_s - since_s < self._job.timeouts.exit_barrier_s:
            return None
        text = (
            f"{self._told(gone[0])} has finished early, while others still needed it: "
            f"{standing(ranks)}; give every rank the same number of batches"
        )
        return Ending(int(ExitCode.FAILED), text=text)

    def limits(self, now_s: float) -> Timeouts:
        """The job's: ranks that have finished get the exit barrier when those of all hosts have."""
        limits = self._job.timeouts
        if self.part.host_index not in self._finished:
            self._alone_s = OFF
            self._finished_s = now_s
            return limits
        if len(self._finished) == self.part.hosts:
            self._alone_s = min(self._alone_s, now_s - self._finished_s)
        return replace(limits, exit_barrier_s=limits.exit_barrier_s + self._alone_s)

    def tell_meeting(self, coordinator: str, address: str, port: int) -> None:
        """Host 0 tells where the ranks meet."""
        where = {"coordinator": coordinator, "addr": address, "port": port}
        self._links.say({"say": "meet", **where})

    def tell_end(self, exit_code: int, text: str) -> None:
        """How this host has ended, once."""
        if not self._has_told_end:
            self._has_told_end = True
            text = text.splitlines()[0][:2000] if text else f"code {exit_code}"
            self._links.say({"say": "over", "exit_code": exit_code, "text": text, "is_own": True})

    def have_left(self) -> bool:
        """Whether none of the others needs what this host serves."""
        return not self.is_first or self._present - {self.part.host_index} <= self._left

    def close(self) -> None:
        """What was told goes out first."""
        self._links.close()
