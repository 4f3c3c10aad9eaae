"""The backend for a Ray cluster: Ray chooses the hosts, and starts an actor on each.

Each attempt has a Ray driver of its own (`driver`), a child of the head; it carries the stream of
each agent between a socket here and the actor there. The control plane knows nothing of Ray.
"""

import collections
import contextlib
import math
import os
import socket
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import BinaryIO

from torch_xdist.launcher.backends.backend import Gone, Plane, Send
from torch_xdist.launcher.backends.engine_pipes import EnginePipes
from torch_xdist.launcher.backends.local import startable
from torch_xdist.launcher.facts import settings
from torch_xdist.launcher.facts.errors import ExitCode
from torch_xdist.launcher.facts.host_list import Host
from torch_xdist.launcher.facts.job import Job
from torch_xdist.launcher.on_ray.request import Request
from torch_xdist.launcher.pipe_stream import PipeStream, Tell
from torch_xdist.system.errors import FrameError
from torch_xdist.system.frames import Link, Message
from torch_xdist.system.process import Child

_AGENT = "torch_xdist.launcher.on_host.agent_over_pipes"
_KEPT_LINES = 20
_END_S = 2.0
# The driver knows why nothing was placed, and says so before the head's own limit has passed.
_BEFORE_THE_HEAD = 0.95


class OnRay:
    """The hosts of a job on Ray.

    Args:
        request: what Ray is asked for.
        python: the interpreter on the nodes; "": that of Ray's own workers.
        env: variables for the agents, and so for all that they start.
        note: shows a line; from any thread.
    """

    def __init__(self, job: Job, request: Request, env: Mapping[str, str], note: Tell) -> None:
        self._job, self._request, self.env, self._note = job, request, startable(env), note
        self._engine: EnginePipes | None = None
        self._driver: _Driver | None = None

    def hosts(self) -> Sequence[str]:
        return [host.name for host in self._job.hosts]

    def take(self, hosts: Sequence[Host]) -> None:
        """Ray chooses for each attempt anew."""

    def there(self) -> Sequence[int]:
        return []

    def rank_secret(self, attempt: int) -> bytes:
        return b""

    def close(self, exit_code: int, text: str) -> None:
        if self._driver is not None:
            self._driver.end(_END_S)

    def start(self, host_index: int, job_id: str, warmth: str, mark: str) -> "AgentOnRay":
        """Ask Ray for a place, with host 0 for all; nothing is waited for."""
        if host_index == 0 or self._driver is None:
            until_s = time.monotonic() + self._job.timeouts.rendezvous_s * _BEFORE_THE_HEAD
            self._driver = _Driver(self._request, until_s, self._job.python)
        if self._engine is None:
            self._engine = EnginePipes("Ray", self._note)
        # Hosts may be one machine, where each ends what has its mark.
        slots = str(self._job.hosts[host_index].slots)
        argv = ["-P", "-m", _AGENT, job_id, warmth, f"{mark}.{host_index}", slots]
        return self._driver.agent(host_index, argv, self.env, self._engine)


class AgentOnRay:
    """An agent of one attempt; its stream is a socket to the driver."""

    def __init__(
        self,
        driver: "_Driver",
        index: int,
        stream: PipeStream,
        env: Mapping[str, str],
        engine: EnginePipes,
    ) -> None:
        self._driver, self._index, self._stream = driver, index, stream
        self._env, self._engine = env, engine
        self._is_connected = False
        self.said: collections.deque[str] = collections.deque(maxlen=_KEPT_LINES)
        self.why, self.code = "", None
        self.is_explained, self._over = threading.Event(), threading.Event()

    def connect(self, plane: Plane, config: Message, stdin: int | None) -> Send:
        """It is spoken to from when Ray has placed it; what is said before waits."""
        self._is_connected, self._plane = True, plane
        lost_s = self._engine.lost_s(config)
        self._engine.greet(self._stream, self._env)
        self._stream.send({**config, "lost_s": lost_s})
        self._stream.start(
            lambda message, blob: plane.post(self._index, message, blob),
            self._tell_gone,
            beat_s=config["beat_s"],
            lost_s=lost_s,
            on_trouble=self._engine.tell_silence(f"node{self._index}", lost_s),
        )
        self._driver.hear()
        return self._stream.send

    def note(self, text: str) -> None:
        """Show a line, as if the agent had said it."""
        if self._is_connected:
            self._plane.post(self._index, {"op": "note", "text": text}, b"")

    def hear(self, text: str, name: str) -> None:
        """What the agent prints on its stderr."""
        for line in text.splitlines():
            if line.strip():
                self.said.append(line.strip())
                if self._stream.has_begun:
                    self.note(f"[{name}] {line.strip()}")

    def why_gone(self) -> str | None:
        return None  # the end of the stream says it

    def silent_s(self) -> float:
        return self._stream.silent_s()

    def lives_on_s(self) -> float:
        return self._stream.lives_on_s()

    def explain(self, why: str, name: str, *, has_said_hello: bool) -> Gone:
        told = self.why or self._driver.last_words()
        if has_said_hello:
            return Gone(f"{why}; {told}" if told else why, int(ExitCode.HOST), is_lost=True)
        if refused := self._driver.refused:
            return Gone(refused[1], refused[0])
        if self.code is not None:
            last = self.said[-1] if self.said else "it said nothing"
            told = (
                f"its agent ended with code {self.code} before it answered: {last}; torch-xdist "
                "must be installed in the environment of Ray's workers as here"
            )
        return Gone(f"host {name}: {told or why}", int(ExitCode.HOST))

    def end(self, limit_s: float = 10.0) -> None:
        if self._is_connected:
            self._stream.close(min(_END_S, limit_s))
            # Where the node is lost nobody can be waited for: the agent ends its ranks by itself.
            is_cut = self._stream.is_lost or not self._stream.has_begun
            self._over.wait(0.0 if is_cut else limit_s)
        else:
            self._stream.abandon()
        self._driver.leave(max(0.5, limit_s))

    def _tell_gone(self, why: str) -> None:
        """On the thread of the stream: the driver says why just before."""
        if not self._stream.is_lost:
            self.is_explained.wait(_END_S)
        self._over.set()
        self._plane.post(self._index, {"op": "gone", "why": why}, b"")


class _Driver:
    """The process of `driver.py`."""

    def __init__(self, request: Request, until_s: float, python: str) -> None:
        ours, theirs = socket.socketpair()
        ours_err, theirs_err = os.pipe2(os.O_CLOEXEC)
        words = [sys.executable, "-P", "-m", "torch_xdist.launcher.on_ray.driver"]
        null = os.open(os.devnull, os.O_WRONLY)
        self._process = Child.start(
            words,
            stdin=theirs.fileno(),
            stdout=null,
            stderr=theirs_err,
            env=settings.environment(),
            # A Ctrl-C on the terminal is for the launcher, which then tells the agents.
            start_new_session=True,
        )
        for fd in (null, theirs_err):
            os.close(fd)
        theirs.close()
        self._link, self._agents = Link(ours), dict[int, AgentOnRay]()
        self.refused: tuple[int, str] | None = None
        self._kept: collections.deque[str] = collections.deque(maxlen=_KEPT_LINES)
        self._left, self._hosts = 0, request.hosts
        self._is_heard = self._has_hung_up = False
        until_s = until_s if math.isfinite(until_s) else 1e12
        first = {"request": request.to_json(), "until_s": until_s, "python": python}
        self._link.send(first)
        self._keeper = threading.Thread(
            target=self._keep, args=(os.fdopen(ours_err, "rb"),), daemon=True
        )
        self._keeper.start()

    def agent(
        self, index: int, argv: Sequence[str], env: Mapping[str, str], engine: EnginePipes
    ) -> AgentOnRay:
        ours, theirs = socket.socketpair()
        told = {"index": index, "argv": [*argv, *engine.words], "env": engine.open_part(env)}
        self._link.send(told, descriptors=[theirs.fileno()])
        theirs.close()
        fd = ours.detach()
        stream = PipeStream(os.dup(fd), fd, is_head=True, tls=engine.accepting())
        agent = AgentOnRay(self, index, stream, env, engine)
        self._agents[index] = agent
        return agent

    def hear(self) -> None:
        """From now on what it says is taken; once."""
        if not self._is_heard:
            self._is_heard = True
            threading.Thread(target=self._listen, daemon=True, name="ray-driver").start()

    def leave(self, limit_s: float) -> None:
        """An agent has ended; with the last one the driver does."""
        self._left += 1
        if self._left >= len(self._agents):
            self.end(limit_s)

    def end(self, limit_s: float) -> None:
        with contextlib.suppress(OSError):
            self._link.sock.shutdown(socket.SHUT_WR)
        if not self._process.wait(limit_s):
            self._process.kill()
            self._process.wait()
        self._keeper.join(_END_S)
        self._process.close()

    def last_words(self) -> str:
        """What it printed last where it has died; "" while it lives."""
        # A process closes its sockets a moment before it has ended.
        if not self._process.wait(_END_S if self._has_hung_up else 0.0):
            return ""
        self._keeper.join(_END_S)
        return f"the Ray driver ended: {self._kept[-1] if self._kept else 'it said nothing'}"

    def _listen(self) -> None:
        with contextlib.suppress(OSError, FrameError):
            while (frame := self._link.receive()) is not None:
                self._take(frame.message)
        self._has_hung_up = True
        for agent in self._agents.values():
            agent.is_explained.set()

    def _take(self, message: Message) -> None:
        match message["op"]:
            case "refused":
                self.refused = int(message["exit_code"]), str(message["text"])
            case "note":
                self._agents[0].note(message["text"])
            case "said":
                index = message["index"]
                self._agents[index].hear(message["text"], f"node{index}")
            case "ended":
                agent = self._agents[message["index"]]
                agent.why, agent.code = message["why"], message["code"]
                agent.is_explained.set()

    def _keep(self, stderr: BinaryIO) -> None:
        with stderr:
            for data in stderr:
                if line := data.decode(errors="replace").strip():
                    self._kept.append(line)
