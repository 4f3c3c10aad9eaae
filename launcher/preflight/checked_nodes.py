"""The nodes that node 0 checks: each has come by itself, to the port where a job would meet.

They come as those of a job do, and prove the same secret. Who has not come in time is a host
without an answer; who comes later is sent away. Each runs its own probe; node 0's is a child of
this process.
"""

import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from torch_xdist.launcher.backends import introduction
from torch_xdist.launcher.backends.backend import Gone, Plane, Send
from torch_xdist.launcher.backends.node_door import Door
from torch_xdist.launcher.backends.node_link import Link, refuse
from torch_xdist.launcher.backends.over_command import AgentOverCommand, HostsOverCommand
from torch_xdist.launcher.connection import Connection
from torch_xdist.launcher.facts.errors import ExitCode
from torch_xdist.launcher.facts.host_list import Host
from torch_xdist.launcher.facts.job import Job
from torch_xdist.launcher.node.here import Here
from torch_xdist.launcher.preflight.inquiry import PROBE
from torch_xdist.system.frames import Message

_CLOSE_S = 2.0
_TICK_S = 0.2

Show = Callable[[int, int, list[str]], None]


class CheckedNodes:
    """What an `Inquiry` starts its probes by.

    Args:
        job: its nodes, and where they come to.
        note: shows a line; from any thread.

    Raises:
        HostError: nothing can listen there.
        DuplicateJobError: that address is another machine's, and somebody leads this job there.
    """

    def __init__(self, job: Job, secret: bytes, note: Callable[[str], None]) -> None:
        self._job, self._note = job, note
        self._limits = replace(job.timeouts, reconnect_s=0.0)
        self._news = threading.Condition()
        self._links: dict[int, Link] = {}
        self._probes: dict[int, _NodeProbe] = {}
        self._is_full = False
        self._chosen = [*range(len(job.hosts))]
        name, port = job.way_command
        self._where = f"{name}:{port}"
        self._door = Door(name, int(port), secret, "check", self._admit, note)

    def gather(self, show: Show) -> list[Host]:
        """Wait until all are there, or the limit of the rendezvous; all nodes, by their names.

        Where fewer are enough, it is waited for the others as long as a job would, and those that
        have not come are left out.

        Args:
            show: called now and then with how many of how many are there, and who is not.
        """
        began_s, next_s = time.monotonic(), self._limits.notice_s
        with self._news:
            while missing := self._missing():
                waited_s = time.monotonic() - began_s
                if waited_s >= self._limits.rendezvous_s or self._is_enough(missing, waited_s):
                    break
                if waited_s >= next_s:
                    next_s = 3 * waited_s
                    self._note(
                        f"waiting for {', '.join(missing)} at {self._where}, {waited_s:.0f} s"
                    )
                show(len(self._job.hosts) - len(missing), len(self._job.hosts), missing)
                self._news.wait(min(_TICK_S, max(0.01, self._limits.rendezvous_s - waited_s)))
            self._is_full = True
            self._chosen = self._those_of_the_check(missing)
            return [self._named(node, self._job.hosts[node]) for node in self._chosen]

    def _is_enough(self, missing: Sequence[str], waited_s: float) -> bool:
        came, least = len(self._job.hosts) - len(missing), self._job.least_hosts
        return 0 < least <= came and waited_s >= self._job.elastic_wait_s

    def _those_of_the_check(self, missing: Sequence[str]) -> list[int]:
        """Their numbers; where too few have come, all."""
        everybody, least = range(len(self._job.hosts)), self._job.least_hosts
        came = [node for node in everybody if node == 0 or node in self._links]
        if not missing or not 0 < least <= len(came):
            return [*everybody]
        self._note(
            f"warning: {', '.join(missing)} did not come to {self._where}; a job can begin with "
            f"{least} of {len(everybody)} nodes, and the {len(came)} that are here are looked at"
        )
        return came

    def start(
        self, host_index: int, job_id: str, warmth: str, mark: str
    ) -> "AgentOverCommand | _NodeProbe":
        """Start the probe of this host, or ask the node that has this place in the check."""
        if host_index == 0:
            here = HostsOverCommand(Here(), self._job.hosts[:1], sys.executable, {}, PROBE)
            return here.start(0, job_id, warmth, mark)
        with self._news:
            node = self._chosen[host_index]
            link = self._links.get(node)
            probe = _NodeProbe(host_index, link, self._why_absent(node))
            self._probes[node] = probe
        return probe

    def close(self, exit_code: int, text: str) -> None:
        """Tell all nodes how it was, and let nobody in any more."""
        self._door.close()
        with self._news:
            self._is_full, links = True, list(self._links.values())
        for link in links:
            link.stream.send({"op": "ended", "exit_code": exit_code, "text": text})
        end_s = time.monotonic() + _CLOSE_S
        for link in links:
            link.stream.close(max(0.05, end_s - time.monotonic()))

    def _missing(self) -> list[str]:
        nodes = range(1, len(self._job.hosts))
        return [introduction.name_of(node) for node in nodes if node not in self._links]

    def _named(self, node: int, host: Host) -> Host:
        """A node is called by its machine, too, once that is known."""
        machine = socket.gethostname() if node == 0 else ""
        if link := self._links.get(node):
            machine = link.machine
        return replace(host, name=f"{host.name} on {machine}" if machine else host.name)

    def _why_absent(self, node: int) -> str:
        return (
            f"host {introduction.name_of(node)}: it did not come to {self._where} within "
            f"{self._limits.rendezvous_s:g} s; start the same command there with --node-rank "
            f"{node}, see that a firewall lets this port through, or raise --rendezvous-timeout"
        )

    # ---- on threads of connections ---------------------------------------------------------------

    def _admit(self, told: Message, line: Connection, address: str) -> None:
        why = introduction.refusal(told, self._job, is_check=True)
        with self._news:
            if why is None:
                why = self._in_the_way(int(told["node"]))
            if why is None:
                link = Link(told, line, self._note)
                self._links[link.node] = link
        if why is not None:
            refuse(line, *why)
            self._door.refused(address, f"node {told.get('node')}: {why[1]}")
            return
        link.open(
            self._limits,
            lambda message, blob: self._take(link, message, blob),
            lambda gone: self._lose(link, gone),
        )
        with self._news:
            self._news.notify_all()

    def _in_the_way(self, node: int) -> tuple[ExitCode, str] | None:
        if node in self._links:
            machine = self._links[node].machine
            return ExitCode.DUPLICATE, (
                f"node {node} is there already ({machine}); give every node its own --node-rank"
            )
        if self._is_full:
            return ExitCode.HOST, "the check went on without it; start all nodes again"
        return None

    def _take(self, link: Link, message: Message, blob: bytes) -> None:
        with self._news:
            probe = self._probes.get(link.node)
        if probe is not None:
            probe.take({"op": "", **message}, blob)

    def _lose(self, link: Link, why: str) -> None:
        with self._news:
            del self._links[link.node]
            probe = self._probes.get(link.node)
        if probe is not None:
            probe.take({"op": "gone", "why": why}, b"")
        else:
            self._note(f"{introduction.name_of(link.node)} ({link.machine}) is gone again: {why}")


class _NodeProbe:
    """The probe of a node that is there, or was; `link` is None where it has not come."""

    def __init__(self, index: int, link: Link | None, why_absent: str) -> None:
        self._index, self._link, self._why_absent = index, link, why_absent
        self._post: Callable[[int, Message, bytes], None] | None = None
        self._turn = threading.Lock()
        self._early: list[tuple[Message, bytes]] = []

    def connect(self, plane: Plane, config: Message, stdin: int | None) -> Send:
        """Tell it to begin; it knows by itself what to look at."""
        with self._turn:
            self._post = plane.post
        if self._link is None:
            self.take({"op": "gone", "why": ""}, b"")
            return _nowhere
        self._link.stream.send({**config, "question": {"device": config["question"]["device"]}})
        for message, blob in self._early:
            plane.post(self._index, message, blob)
        return self._link.stream.send

    def take(self, message: Message, blob: bytes) -> None:
        """What it says; from any thread."""
        with self._turn:
            if self._post is None:
                self._early.append((message, blob))
                return
        self._post(self._index, message, blob)

    def explain(self, why: str, name: str, *, has_said_hello: bool) -> Gone:
        if self._link is None:
            return Gone(self._why_absent, int(ExitCode.HOST))
        text = why if has_said_hello else f"host {name}: it left before it was asked: {why}"
        return Gone(text, int(ExitCode.HOST))

    def end(self, limit_s: float = 10.0) -> None:
        """It is told by `CheckedNodes.close`."""


def _nowhere(message: Any, blob: bytes) -> None:
    """What is said to a node that has not come."""
