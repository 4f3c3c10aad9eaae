"""The hosts of a job that come by themselves: `xla-run --nnodes N`, typed on each of them.

Node 0 runs the head, and an agent as a job of its own host does. To start the agent of another node
is to wait until that has come through the door and proven the secret, and to hand its connection
over. A node stays for all attempts. What its agent is told goes through the node, which takes the
command, its folder and its variables from its own command line (`node/own_orders.py`); so none of
these is sent.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from torch_xdist.launcher.backends import introduction
from torch_xdist.launcher.backends.backend import AgentProcess, Gone, Plane, Send
from torch_xdist.launcher.backends.local import ThisHost
from torch_xdist.launcher.backends.node_door import Door
from torch_xdist.launcher.backends.node_link import LEFT, Link, refuse
from torch_xdist.launcher.connection import Connection
from torch_xdist.launcher.facts import placement, settings
from torch_xdist.launcher.facts.errors import ExitCode, HostError
from torch_xdist.launcher.facts.host_list import Host
from torch_xdist.launcher.facts.job import Job
from torch_xdist.launcher.sealed import rank_secret
from torch_xdist.system.frames import Message

_CLOSE_S = 2.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_OWN_TO_A_NODE = ("task", "env", "cwd", "log_dir", "is_own_log_dir")


class Ask(Protocol):
    """Stops the job as if by a signal; a second time by the same source without any grace."""

    def __call__(self, number: int, *, source: str) -> None: ...


class Nodes:
    """The nodes of a job, as node 0 sees them.

    Args:
        secret: what all nodes know.
        ask: called where a node was told to stop.
        note: shows a line; from any thread.
    """

    def __init__(self, job: Job, secret: bytes, ask: Ask, note: Callable[[str], None]) -> None:
        self._job, self._secret, self._ask, self._note = job, secret, ask, note
        self._salt = os.urandom(32)
        self._lock = threading.RLock()
        self._links: dict[int, Link] = {}
        self._agents: dict[int, AgentOnNode] = {}
        self._attempt = -1
        self._door: Door | None = None
        self._is_over = False
        self._nodes = list(range(len(job.hosts)))  # of the attempt

    def hosts(self) -> Sequence[str]:
        return [self._job.hosts[node].name for node in self._nodes]

    def take(self, hosts: Sequence[Host]) -> None:
        names = [host.name for host in self._job.hosts]
        self._nodes = [names.index(host.name) for host in hosts]

    def there(self) -> Sequence[int]:
        """This node, and those that have come; from now on they may.

        Raises:
            HostError: the port cannot be listened on.
        """
        self._open_door()
        with self._lock:
            links = self._links.values()
            return [0, *sorted(link.node for link in links if not link.is_leaving)]

    def start(self, host_index: int, job_id: str, warmth: str, mark: str) -> AgentProcess:
        """Start the agent of this host, or expect a node.

        Raises:
            HostError: the port cannot be listened on.
        """
        if host_index == 0:
            self._attempt += 1
            self._agents.clear()
            self._open_door()
            return ThisHost(self._environ()).start(0, job_id, warmth, mark)
        salt = self._salt.hex()
        order = {"op": "attempt", "number": self._attempt, "salt": salt}
        node = self._nodes[host_index]
        return AgentOnNode(host_index, node, self._attempt, order, self._is_connected)

    def rank_secret(self, attempt: int) -> bytes:
        """What the ranks of an attempt seal with; every node makes it for itself."""
        return rank_secret(self._secret, self._job.job_id, attempt, self._salt)

    def close(self, exit_code: int, text: str) -> None:
        """The job is over: let nobody in, and tell every node how it was."""
        with self._lock:
            self._is_over, links = True, list(self._links.values())
        if self._door is not None:
            self._door.close()
        for link in links:
            link.stream.send({"op": "ended", "exit_code": exit_code, "text": text})
        end_s = time.monotonic() + _CLOSE_S
        for link in links:
            link.stream.close(max(0.05, end_s - time.monotonic()))

    def _open_door(self) -> None:
        if self._door is None:
            name, port = self._job.way_command
            facts = name, int(port), self._secret, self._job.job_id
            self._door = Door(*facts, self._admit, self._note)

    def _environ(self) -> dict[str, str]:
        """For the agent of this host, whose ranks are not those of the others."""
        environ = {**settings.environment(), **self._job.env}
        threads = placement.library_environ(environ, self._job.hosts[0].slots)
        return {**self._job.env, **threads, **self._job.timeouts.to_environ()}

    # ---- on threads of connections ---------------------------------------------------------------

    def _admit(self, told: Message, line: Connection, address: str) -> None:
        if told.get("op") == "resume":
            self._take_back(told, line)
            return
        why = introduction.refusal(told, self._job)
        with self._lock:
            if why is None:
                why = self._in_the_way(told)
            if why is None:
                link, in_attempt = Link(told, line, self._note), self._nodes
                earlier = self._links.pop(link.node, None)
                self._links[link.node] = link
                agent = self._agents.get(link.node)
        if why is not None:
            refuse(line, *why)
            if self._door is not None:
                self._door.refused(address, f"node {told.get('node')}: {why[1]}")
            return
        if earlier is not None:
            # Whoever types it again knows that the one before is not there any more.
            earlier.stream.give_up("another process has come in its place")
        link.open(
            self._job.timeouts,
            lambda message, blob: self._take(link, message, blob),
            lambda gone: self._lose(link, gone),
        )
        if agent is not None:
            agent.attach(link)
        elif self._attempt >= 0 and link.node not in in_attempt:
            name = introduction.name_of(link.node)
            self._note(f"{name} ({link.machine}) has come, and takes part in the next attempt")

    def _take_back(self, told: Message, line: Connection) -> None:
        """A node whose connection was lost has made another one."""
        with self._lock:
            link = None if self._is_over else self._links.get(int(told["node"]))
        if link is None or not link.is_of(told):
            refuse(line, ExitCode.HOST, "it was lost to the job, which has gone on without it")
            return
        try:
            link.take_back(told, line)
        except HostError as error:
            refuse(line, ExitCode.HOST, str(error))
        except (KeyError, OSError, TypeError, ValueError):
            line.close()

    def _in_the_way(self, told: Mapping[str, Any]) -> tuple[ExitCode, str] | None:
        node = int(told["node"])
        if self._is_over:
            return ExitCode.HOST, "the job is over"
        if (other := self._links.get(node)) is not None and not other.is_cut:
            return ExitCode.DUPLICATE, (
                f"node {node} is there already ({other.machine}); give every node its own "
                "--node-rank"
            )
        return None

    def _take(self, link: Link, message: Message, blob: bytes) -> None:
        """What a node says: of itself, or of its agent in the attempt that it names."""
        agent, number = self._agents.get(link.node), message.get("signal")
        if message.get("op") == "leave":
            link.stream.give_up(LEFT)
        elif message.get("op") == "ask" and number in _SIGNALS:
            name = introduction.name_of(link.node)
            self._note(f"{name} was told to stop by {signal.Signals(number).name}")
            # Who types Ctrl-C wants the job to end; SIGTERM says that this machine is taken away.
            if number == signal.SIGTERM and self._job.least_hosts:
                self._let_go(link, agent)
            else:
                self._ask(number, source=name)
        elif agent is not None and message.pop("of_attempt", None) == agent.attempt:
            agent.take({"op": "", **message}, blob)
            if link.is_leaving and agent.is_over:
                self._dismiss(link)

    def _let_go(self, link: Link, agent: "AgentOnNode | None") -> None:
        """A node takes part in no further attempt, and leaves when this one has ended."""
        with self._lock:
            is_again, link.is_leaving = link.is_leaving, True
        if agent is None or agent.is_over:
            self._dismiss(link)
        elif not is_again:
            agent.leave()

    def _dismiss(self, link: Link) -> None:
        text = f"{introduction.name_of(link.node)} has left the job, which may go on without it"
        code = 128 + signal.SIGTERM
        link.stream.send({"op": "ended", "exit_code": int(code), "text": text})

    def _lose(self, link: Link, why: str) -> None:
        with self._lock:
            if self._links.get(link.node) is link:
                del self._links[link.node]
            agent = self._agents.get(link.node)
        if agent is not None:
            agent.lose(link, why)

    def _is_connected(self, agent: "AgentOnNode") -> None:
        """The head knows it now: its node may be there already."""
        with self._lock:
            self._agents[agent.node] = agent
            link = self._links.get(agent.node)
        if link is not None and not link.is_leaving:
            agent.attach(link)
        elif self._job.least_hosts:
            agent.give_up()


class AgentOnNode:
    """The agent of a node in one attempt; what it is told waits until the node is there.

    Args:
        index: its number among the hosts of the attempt.
    """

    def __init__(
        self,
        index: int,
        node: int,
        attempt: int,
        order: Message,
        is_connected: Callable[["AgentOnNode"], None],
    ) -> None:
        self._index, self.node, self.attempt = index, node, attempt
        self._is_connected = is_connected
        self._lock = threading.Lock()
        self._link: Link | None = None
        self._waiting: list[tuple[Message, bytes]] = [(order, b"")]
        self._over = threading.Event()

    def connect(self, plane: Plane, config: Message, stdin: int | None) -> Send:
        """The node gives its own answer to what its machine is; no descriptor can be given."""
        self._post = plane.post
        self.send(config)
        self._is_connected(self)
        return self.send

    def send(self, message: Mapping[str, Any], blob: bytes = b"") -> None:
        told = _without_command(message) if message["op"] == "start" else dict(message)
        with self._lock:
            if self._link is None:
                self._waiting.append((told, blob))
            else:
                self._link.stream.send(told, blob)

    def attach(self, link: Link) -> None:
        """Its node is there: from now on this is the way to it. Once."""
        with self._lock:
            if self._link is None:
                self._link = link
                for message, blob in self._waiting:
                    link.stream.send(message, blob)

    def take(self, message: Message, blob: bytes) -> None:
        """What it says."""
        if message["op"] == "agent_ended":
            self._over.set()
        else:
            self._post(self._index, message, blob)

    @property
    def is_over(self) -> bool:
        return self._over.is_set()

    def leave(self) -> None:
        """Its node is taken away soon."""
        self._post(self._index, {"op": "leaves", "why": "it was told to stop by SIGTERM"}, b"")

    def give_up(self) -> None:
        """Its node, which was there a moment ago, is not any more, and is not waited for."""
        self._post(self._index, {"op": "gone", "why": "it is not there any more"}, b"")

    def lose(self, link: Link, why: str) -> None:
        """Its node is gone."""
        if self._link is link:
            self._over.set()
            self._post(self._index, {"op": "gone", "why": why}, b"")

    def why_gone(self) -> str | None:
        return None  # the end of the stream says it

    def silent_s(self) -> float:
        return self._link.stream.silent_s() if self._link is not None else 0.0

    def lives_on_s(self) -> float:
        return self._link.stream.lives_on_s() if self._link is not None else 0.0

    def explain(self, why: str, name: str, *, has_said_hello: bool) -> Gone:
        machine = f" ({self._link.machine})" if self._link is not None else ""
        if has_said_hello:
            return Gone(why, int(ExitCode.HOST), is_lost=True)
        text = f"host {name}{machine}: it left before the job began: {why}; look what it printed"
        return Gone(text, int(ExitCode.HOST))

    def end(self, limit_s: float = 10.0) -> None:
        """Its node says when nothing of it is left; one that never came has nothing."""
        if self._link is not None:
            self._over.wait(limit_s)


def _without_command(message: Mapping[str, Any]) -> Message:
    """An order to start ranks without what the node has itself, and without secrets."""
    ranks = [
        {**facts, "env": {k: v for k, v in facts["env"].items() if k != "XLA_RUN_SECRET"}}
        for facts in message["ranks"]
    ]
    kept = {name: value for name, value in message.items() if name not in _OWN_TO_A_NODE}
    folder = os.path.basename(os.path.dirname(message["log_dir"]))
    return {**kept, "ranks": ranks, "log_folder": folder}
