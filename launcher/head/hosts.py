"""What the head knows of each host of an attempt, and how it speaks to their agents."""

import time
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from torch_xdist.launcher.backends.backend import AgentProcess, Send
from torch_xdist.launcher.facts.errors import ExitCode
from torch_xdist.launcher.facts.host import HostFacts
from torch_xdist.launcher.facts.job import Job
from torch_xdist.launcher.facts.records import OF_HOSTS, Failure
from torch_xdist.system.frames import Message


def _unsent(message: Mapping[str, Any], blob: bytes) -> None:
    """To an agent that was never connected."""


@dataclass
class HostState:
    """One host.

    `name` is what the user calls it, else what its agent says, "" until then; `address` where other
    hosts reach it, if the user has said so. `facts` come with the agent's hello.
    """

    index: int
    agent: AgentProcess
    ranks: range
    name: str = ""
    address: str = ""
    send: Send = _unsent
    facts: HostFacts | None = None
    all_ended: bool = False
    gone: bool = False
    stacks: dict[str, str] | None = None

    @property
    def is_over(self) -> bool:
        """Whether nothing more is to come from it; without a hello it has started nothing."""
        return self.all_ended or self.gone or self.facts is None


@dataclass
class Hosts:
    """All hosts of an attempt."""

    states: list[HostState] = field(default_factory=list)

    @classmethod
    def of(cls, agents: Sequence[AgentProcess], job: Job) -> "Hosts":
        """The hosts of a job, each with its agent and its ranks."""
        named = [(host.name, host.address) for host in job.hosts] or [("", "")]
        firsts = [*accumulate(job.shares(), initial=job.ranks().start)]
        return cls(
            [
                HostState(index, agent, range(firsts[index], firsts[index + 1]), *named[index])
                for index, agent in enumerate(agents)
            ]
        )

    def __iter__(self) -> Iterator[HostState]:
        return iter(self.states)

    def __len__(self) -> int:
        return len(self.states)

    def __getitem__(self, index: int) -> HostState:
        return self.states[index]

    def of_rank(self, rank: int) -> HostState:
        """The host of a rank: hosts have their ranks in order."""
        after = bisect_right(self.states, rank, key=lambda state: state.ranks.start)
        return self.states[after - 1]

    def config(self, state: HostState, job: Job) -> Message:
        """The first message to an agent."""
        part = job.part
        return {
            "op": "config",
            "host_index": state.index,
            "hosts": part.hosts if part else len(self),
            "named": part.master_addr if part and not part.host_index else state.address,
            "keeps_logs": bool(job.hosts) and not job.log_root_is_named,
            "device": job.device,
            "beat_s": job.timeouts.beat_s,
            "lost_s": job.timeouts.lost_s,
            "reconnect_s": job.timeouts.reconnect_s,
        }

    def send(self, message: Mapping[str, Any], blob: bytes = b"") -> None:
        """Tell every agent."""
        for state in self.states:
            state.send(message, blob)

    def end(self, limit_s: float = 10.0) -> None:
        """Nothing of any agent is left within the limit."""
        end_s = time.monotonic() + limit_s
        for state in self.states:
            state.agent.end(max(0.1, end_s - time.monotonic()))

    def told(self, state: HostState, message: Message) -> str:
        """The line of a note; one that warns is named with its host, where there are several."""
        if "warning" not in message:
            return str(message["text"])
        where = f"host {state.name}: " if len(self.states) > 1 else ""
        return f"warning: {where}{message['warning']}"

    def are_in_doubt(self, silent_s: float) -> bool:
        """Whether one that is not known to be gone has been silent for so long."""
        return any(not one.is_over and one.agent.silent_s() > silent_s for one in self.states)

    def are_over(self) -> bool:
        return all(state.is_over for state in self.states)

    def gone(self) -> set[int]:
        """The numbers of those from which nothing more comes."""
        return {state.index for state in self.states if state.gone}

    def first_gone(self) -> tuple[HostState, str] | None:
        """A host whose agent process has ended, and how; only one that was not known to be."""
        for state in self.states:
            if not state.gone and (why := state.agent.why_gone()) is not None:
                return state, why
        return None

    def blamed(self, failures: Sequence[Failure], exit_code: int) -> dict[int, str]:
        """Those to which an ending is due, and not to what the ranks run, by number, and why.

        They were lost, or could not start their ranks, or have not said a word in time; where all
        have said hello in time, that the ranks have not come is nobody's fault in particular.
        """
        is_late = exit_code == ExitCode.RENDEZVOUS
        kinds = OF_HOSTS if is_late else (*OF_HOSTS, "launch")
        why = {one.rank: one.message for one in reversed(failures) if one.kind in kinds}
        found = {}
        for state in self.states:
            told = [why[rank] for rank in state.ranks if rank in why]
            if told or state.gone or (is_late and state.facts is None):
                found[state.index] = next(iter(told), "").partition("\n")[0]
        return found

    def fence_s(self) -> float:
        """For how long ranks of hosts that were lost may still run.

        That a connection has ended does not say that the other end knows it.
        """
        return max([0.0, *(state.agent.lives_on_s() for state in self.states if state.gone)])

    def ask_stacks(self) -> None:
        """Ask for the stacks of all ranks; `stacks` gives them when all hosts have answered."""
        for state in self.states:
            state.stacks = None
        self.send({"op": "stacks"})

    def stacks(self) -> dict[str, str] | None:
        """The stacks that were asked for, by rank; None while an answer is missing."""
        found: dict[str, str] = {}
        for state in self.states:
            if state.stacks is None and not state.is_over:
                return None
            found.update(state.stacks or {})
        return found
