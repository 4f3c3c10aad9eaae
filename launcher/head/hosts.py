"""The hosts of a job: how their agents are started, and what the head knows of each.

A backend names the hosts and starts one agent on each; everything else is the control plane's.
`ThisHost` is the first backend; see CONTRIBUTING.md for how to add one.
"""

import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch_xdist.launcher.facts.settings import LOOPBACK, environment
from torch_xdist.system import process_tree
from torch_xdist.system.frames import Link, Message
from torch_xdist.system.process import Child

# Linux takes 128 KiB for one variable, and 2 MiB for all and the command line together.
_MOST_VALUE_BYTES = 100_000
_MOST_ENVIRON_BYTES = 1 << 20


class AgentProcess(Protocol):
    """An agent that was started: where its host is, and how it is spoken to before it connects."""

    address: str

    def configure(self, message: Message, stdin: int | None) -> None:
        """Say where the head is, and with which token; and give it the stdin for one rank."""

    def why_gone(self) -> str | None:
        """None while it lives, so far as is known; else how it ended."""

    def end(self, limit_s: float = 10.0) -> None:
        """Gone within the limit, with everything that it started."""


class Backend(Protocol):
    """Starts agents; an agent of `start` is what `python -m ...on_host.agent` runs."""

    def hosts(self) -> Sequence[str]:
        """The hosts of the job by name, host 0 first."""

    def start(self, host_index: int, job_id: str, warmth: str, mark: str) -> AgentProcess:
        """Start the agent of one host.

        Args:
            mark: "NAME=value", to be in the environment of all that it starts.
        """


class ThisHost:
    """The backend for this machine: one agent, started as a child.

    Args:
        env: variables for what the nursery imports, on top of this process's own.
    """

    def __init__(self, env: Mapping[str, str]) -> None:
        self._env = env

    def hosts(self) -> Sequence[str]:
        return [LOOPBACK]

    def start(self, host_index: int, job_id: str, warmth: str, mark: str) -> "AgentHere":
        ours, theirs = socket.socketpair()
        process = Child.start(
            [
                *(sys.executable, "-P", "-m", "torch_xdist.launcher.on_host.agent"),
                *(job_id, warmth, mark),
            ],
            stdin=theirs.fileno(),
            env={**environment(), **startable(self._env)},
            # A Ctrl-C on the terminal is for the launcher, which then tells the agents.
            start_new_session=True,
        )
        theirs.close()
        return AgentHere(process, ours, mark)


class AgentHere:
    """The agent process of this host. Its stdin is a socket to us: where it ends, the agent does.

    Args:
        process: our child, from `ThisHost`, or forked with us by `inherit`.
    """

    address = LOOPBACK

    def __init__(self, process: Child, stdin: socket.socket, mark: str) -> None:
        self._process, self._stdin, self._mark = process, Link(stdin), mark
        # What is left where the agent and the nursery are killed together becomes ours.
        process_tree.adopt_orphans()
        self._children_before = {*process_tree.children(os.getpid())}

    def configure(self, message: Message, stdin: int | None) -> None:
        """The token travels here: no other process can read it."""
        self._stdin.send(message, descriptors=[] if stdin is None else [stdin])

    def why_gone(self) -> str | None:
        code = self._process.poll()
        if not self._process.ended():
            return None
        return "its process ended" + (f" with code {code}" if code is not None else "")

    def end(self, limit_s: float = 10.0) -> None:
        self._stdin.close()
        if not self._process.wait(limit_s):
            self._process.kill()
            self._process.wait()
        if self._process.code != 0:
            process_tree.sweep(self._mark, keep={os.getpid()}, roots=[self._process.pid])
            self._sweep_adopted()
        self._process.close()

    def _sweep_adopted(self) -> None:
        """End what the agent and the nursery have left to us, whatever its session is."""
        for pid in {*process_tree.children(os.getpid())} - self._children_before:
            process_tree.sweep(self._mark, keep={os.getpid()}, roots=[pid])
            with Child(pid) as orphan:
                orphan.signal(signal.SIGKILL)
                orphan.wait(1.0)


def startable(env: Mapping[str, str]) -> dict[str, str]:
    """Those variables that a program can be started with; the ranks get the others later."""
    fitting: dict[str, str] = {}
    room = _MOST_ENVIRON_BYTES
    for name, value in env.items():
        size = len(os.fsencode(name)) + len(os.fsencode(value)) + 2
        if size <= min(room, _MOST_VALUE_BYTES):
            fitting[name] = value
            room -= size
    return fitting


@dataclass
class HostState:
    """One host. `name` is what its agent calls it, "" until that has connected."""

    index: int
    agent: AgentProcess
    ranks: range
    name: str = ""
    all_ended: bool = False
    gone: bool = False
    stacks: dict[str, str] | None = None

    @property
    def is_over(self) -> bool:
        """Whether nothing more is to come from it."""
        return self.all_ended or self.gone


@dataclass
class Hosts:
    """All hosts of an attempt, and the way to speak to their agents.

    `send_to` queues a message for the agent of a host, by its index; it is `control.Server.send`.
    """

    send_to: Callable[[int, Mapping[str, Any], bytes], None]
    states: list[HostState] = field(default_factory=list)

    def __iter__(self) -> Iterator[HostState]:
        return iter(self.states)

    def __getitem__(self, index: int) -> HostState:
        return self.states[index]

    def send(self, message: Mapping[str, Any], blob: bytes = b"") -> None:
        """Tell every agent."""
        for state in self.states:
            self.send_to(state.index, message, blob)

    def are_over(self) -> bool:
        return all(state.is_over for state in self.states)

    def have_all_ended(self) -> bool:
        return all(state.all_ended for state in self.states)

    def first_gone(self) -> tuple[HostState, str] | None:
        """A host whose agent process has ended, and how; only one that was not known to be."""
        for state in self.states:
            if not state.gone and (why := state.agent.why_gone()) is not None:
                return state, why
        return None

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
