"""The process of a node that is not node 0: between the head there and an agent here.

It comes to node 0 with its secret, introduces itself, and then passes on: orders to the agent (as
`own_orders` translates them), news to the head. In each attempt the agent is a new one; the
connection stays, or is made anew (`return_to_head`). Where none can be made, the agent ends, and
with it all ranks; where this process is killed, the agent sees the end of its stdin. Signals are
told to the head, which ends the job on all nodes.

The main thread owns all state; other threads and signal handlers put what they have into a queue.
"""

import queue
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from torch_xdist.launcher.backends import introduction
from torch_xdist.launcher.backends.backend import Plane, Send
from torch_xdist.launcher.backends.over_command import AgentOverCommand, HostsOverCommand
from torch_xdist.launcher.connection import Connection
from torch_xdist.launcher.facts.errors import ExitCode, LauncherError, ProtocolError
from torch_xdist.launcher.facts.job import Job, new_mark
from torch_xdist.launcher.node.dialing import Dialer
from torch_xdist.launcher.node.here import Here
from torch_xdist.launcher.node.own_orders import OwnOrders
from torch_xdist.launcher.node.return_to_head import ReturnToHead
from torch_xdist.launcher.pipe_stream import PipeStream
from torch_xdist.launcher.sealed import rank_secret
from torch_xdist.system.frames import Message

_TICK_S = 0.25
_CLOSE_S = 2.0
# A head that was told twice to stop ends its job; one that cannot is not waited for.
_LEAVE_S = 5.0
# What may wait for a slow head before lines are left to the files.
_MOST_PENDING_BYTES = 8 << 20
_MOST_TEXT = 2000


class Node:
    """One node, from its first try to the exit code of the job.

    Args:
        job: what its own command line describes.
        node: which one it is, from 1 up.
        secret: what all nodes know.
        say: shows a line.
    """

    def __init__(self, job: Job, node: int, secret: bytes, say: Callable[[str], None]) -> None:
        self._job, self._node, self._secret, self._say = job, node, secret, say
        name, port = job.way_command
        self._dialer = Dialer(node, (name, int(port)), secret, job.timeouts, say)
        # Its `put` is safe in a signal handler, whatever that interrupts.
        self._inbox: queue.SimpleQueue[tuple[Callable[..., None], tuple[Any, ...]]] = (
            queue.SimpleQueue()
        )
        self._session = secrets.token_hex(16)
        self._head: PipeStream | None = None
        self._return: ReturnToHead | None = None
        self._agent: AgentOverCommand | None = None
        self._send: Send = lambda *_: None
        self._orders: OwnOrders | None = None
        self._job_id = self._address = ""
        self._attempt, self._unshown, self._is_leaving = -1, 0, False
        self._asked: list[int] = []
        self._leave_at_s: float | None = None
        self._code: int | None = None

    def run(self) -> int:
        """The exit code of the job, or of this node's part in it.

        Raises:
            LauncherError: node 0 was not there in time, or refuses this node, or cannot be meant.
        """
        threading.Thread(target=self._dial, daemon=True, name="dial").start()
        try:
            while self._code is None:
                self._take_one()
            return self._code
        finally:
            self._dialer.stop()
            if self._agent is not None:
                self._agent.end()
            if self._head is not None:
                # Without that word it would be waited for.
                self._head.send({"op": "leave"})
                self._head.close(_CLOSE_S)

    def asked(self, number: int) -> None:
        """A signal has come; in its handler."""
        self._inbox.put((self._on_signal, (number,)))

    def _take_one(self) -> None:
        try:
            action, arguments = self._inbox.get(timeout=_TICK_S)
        except queue.Empty:
            if self._leave_at_s is not None and time.monotonic() >= self._leave_at_s:
                self._code = _code_of(self._asked[0])
            return
        action(*arguments)

    # ---- the way to the head -------------------------------------------------------------------

    def _dial(self) -> None:
        try:
            found = self._dialer.connect()
            self._inbox.put((self._on_connected, found))
        except LauncherError as error:
            self._inbox.put((self._on_failed, (error,)))
        except Exception as error:
            self._inbox.put((self._on_failed, (LauncherError(f"node {self._node}: {error!r}"),)))

    def _on_failed(self, error: LauncherError) -> None:
        text, name = str(error), f"node {self._node}: "
        if not text.startswith(name):
            raise type(error)(f"{name}{self._dialer.name}: {text}")
        raise error

    def _on_connected(self, sock: socket.socket, sealed: Any) -> None:
        self._address, self._job_id = sock.getsockname()[0], sealed.job_id
        self._head = PipeStream.over(Connection.over(sock, sealed))
        known = self._job, self._node, socket.gethostname(), self._session
        self._head.send(introduction.introduction(*known))
        self._return = ReturnToHead(self._dialer, self._node, self._session, self._head, self._say)
        self._head.start(
            lambda *said: self._inbox.put((self._on_head, said)),
            lambda why: self._inbox.put((self._on_lost, (why,))),
            beat_s=self._job.timeouts.beat_s,
            lost_s=self._job.timeouts.lost_s,
            within_s=self._job.timeouts.reconnect_s,
            # What it has said on the connection that ended comes first: it may be the end.
            on_trouble=lambda why: self._inbox.put((self._on_trouble, (why,))),
        )
        for number in self._asked:
            self._head.send({"op": "ask", "signal": number})

    def _on_trouble(self, why: str) -> None:
        if self._return is not None:
            self._return.try_for(why)

    def _on_lost(self, why: str) -> None:
        if self._code is None:
            self._say(f"xla-run: {self._dialer.name} was lost: {why}")
            self._code = _code_of(self._asked[0]) if self._asked else int(ExitCode.HOST)

    def _on_signal(self, number: int) -> None:
        self._asked.append(number)
        if self._head is None:
            self._code = _code_of(number)
            return
        self._head.send({"op": "ask", "signal": number})
        if len(self._asked) > 1 and self._leave_at_s is None:
            self._leave_at_s = time.monotonic() + _LEAVE_S

    # ---- what the head says --------------------------------------------------------------------

    def _on_head(self, message: Message, _: bytes) -> None:
        try:
            self._hear(message)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ProtocolError(
                f"node {self._node}: {self._dialer.name} says what cannot be read: {error!r}"
            ) from error

    def _hear(self, message: Message) -> None:
        match message["op"]:
            case "welcome":
                assert self._head is not None
                limits = (float(message[name]) for name in ("beat_s", "lost_s", "within_s"))
                self._head.keep_to(*limits)
                nodes = len(self._job.hosts)
                name = f"job {self._job_id} of {self._dialer.name}"
                self._say(f"node {self._node} of {nodes} is in {name}")
            case "refused":
                text = str(message["text"])[:_MOST_TEXT]
                self._say(f"xla-run: {self._dialer.name} refuses node {self._node}: {text}")
                self._code = int(message["exit_code"]) or int(ExitCode.INTERNAL)
            case "ended":
                self._on_ended(int(message["exit_code"]), str(message["text"])[:_MOST_TEXT])
            case "attempt":
                self._begin(int(message["number"]), bytes.fromhex(message["salt"]))
            case _:
                self._obey(message)

    def _on_ended(self, code: int, text: str) -> None:
        if self._head is not None:
            # It may be gone by now, and does not wait for our last word.
            self._head.part()
        if text:
            self._say(f"xla-run: {text}")
        self._code = code

    def _begin(self, attempt: int, salt: bytes) -> None:
        """A new agent, for one attempt."""
        if self._agent is not None:
            self._agent.end()
        job = self._job
        self._attempt, self._is_leaving = attempt, False
        secret = rank_secret(self._secret, self._job_id, attempt, salt)
        self._orders = OwnOrders(job, self._node, self._address, self._job_id, attempt, secret)
        env = {**job.timeouts.to_environ(), **job.env}
        hosts = HostsOverCommand(Here(), [job.hosts[self._node]], sys.executable, env)
        self._agent = hosts.start(0, self._job_id, job.warmth, new_mark())

    def _obey(self, message: Message) -> None:
        if self._orders is None or self._agent is None:
            return
        order = self._orders.own(message)
        if order is None:
            return
        if order["op"] == "config":

            def post(_: int, said: Message, blob: bytes, attempt: int = self._attempt) -> None:
                self._inbox.put((self._on_agent, (attempt, said, blob)))

            plane = Plane(None, post)  # type: ignore[arg-type]  # it comes over pipes
            self._send = self._agent.connect(plane, order, None)
            return
        self._is_leaving |= order["op"] == "bye"
        self._send(order, b"")

    # ---- what the agent says -------------------------------------------------------------------

    def _on_agent(self, attempt: int, message: Message, blob: bytes) -> None:
        if attempt != self._attempt or self._head is None or self._agent is None:
            return
        if message["op"] == "gone":
            why = message["why"]
            self._agent.end()
            if not self._is_leaving:
                gone = self._agent.explain(why, f"node{self._node}", has_said_hello=True)
                self._tell({"op": "gone", "why": f"its agent is gone: {gone.text}"})
            self._tell({"op": "agent_ended"})
            self._agent, self._send = None, lambda *_: None
            return
        if message["op"] == "hello" and self._orders is not None:
            self._orders.log_root = self._orders.log_root or message["facts"]["log_root"]
        if message["op"] != "log" or self._makes_room(message):
            self._tell(message, blob)

    def _tell(self, message: Message, blob: bytes = b"") -> None:
        assert self._head is not None
        self._head.send({**message, "of_attempt": self._attempt}, blob)

    def _makes_room(self, message: Message) -> bool:
        """Whether lines of ranks can be sent on; they are in the files all the same."""
        assert self._head is not None
        if self._head.pending_bytes > _MOST_PENDING_BYTES:
            self._unshown += len(message["lines"]) + message["unshown"]
            return False
        message["unshown"] += self._unshown
        self._unshown = 0
        return True


def _code_of(number: int) -> int:
    return 128 + number
