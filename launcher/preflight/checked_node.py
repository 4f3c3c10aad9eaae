"""A node that node 0 checks: it comes there, looks at its own machine, and ends as node 0 does.

What it looks at (its directory, its command, where its logs would be) is what its own command line
says; node 0 names the kind of device, the hosts that it shall try to reach, and the end.
"""

import queue
import secrets
import socket
import threading
from collections.abc import Callable, Mapping
from typing import Any

from torch_xdist.launcher.backends import introduction
from torch_xdist.launcher.connection import Connection
from torch_xdist.launcher.facts import devices
from torch_xdist.launcher.facts.errors import (
    AuthError,
    ExitCode,
    HostError,
    LauncherError,
    ProtocolError,
)
from torch_xdist.launcher.facts.host import VERSION
from torch_xdist.launcher.facts.job import Job
from torch_xdist.launcher.node.dialing import Dialer
from torch_xdist.launcher.on_host.head_stream import Stream
from torch_xdist.launcher.pipe_stream import PipeStream
from torch_xdist.launcher.preflight.probe import Probe
from torch_xdist.system.frames import Message

_CLOSE_S = 2.0
_MOST_TEXT = 2000


class CheckedNode:
    """One node, from its first try to reach node 0 to the exit code of the check.

    Args:
        job: what its own command line describes.
        node: which one it is, from 1 up.
        question: what it finds out about itself, as `measure.facts` takes it.
        say: shows a line.
    """

    def __init__(
        self,
        job: Job,
        node: int,
        secret: bytes,
        question: Mapping[str, Any],
        say: Callable[[str], None],
    ) -> None:
        self._job, self._node, self._question, self._say = job, node, question, say
        name, port = job.way_command
        self._dialer = Dialer(node, (name, int(port)), secret, job.timeouts, say)
        self._inbox: queue.SimpleQueue[Message | str] = queue.SimpleQueue()
        self._probe: Probe | None = None

    def run(self) -> int:
        """The exit code of the check, on all nodes the same.

        Raises:
            LauncherError: node 0 was not there in time, or does not believe this node.
        """
        try:
            sock, sealed = self._dialer.connect()
        except AuthError as error:
            raise AuthError(f"node {self._node}: {self._dialer.name}: {error}") from None
        self._address = str(sock.getsockname()[0])
        self._head = PipeStream.over(Connection.over(sock, sealed))
        session = secrets.token_hex(16)
        told = introduction.introduction(self._job, self._node, socket.gethostname(), session)
        self._head.send({**told, "op": introduction.CHECK})
        limits = self._job.timeouts
        self._head.start(
            lambda message, _: self._inbox.put(message),
            self._inbox.put,
            beat_s=limits.beat_s,
            lost_s=limits.lost_s,
        )
        try:
            while True:
                said = self._inbox.get()
                if isinstance(said, str):
                    raise HostError(f"node {self._node}: {self._dialer.name} was lost: {said}")
                if (code := self._heard(said)) is not None:
                    return code
        finally:
            self._head.close(_CLOSE_S)

    def open(self, config: Message, hello: Message, post: Any) -> Stream:
        """The way of the probe to its head; orders come through `_hear`."""
        self._head.send({**hello, "op": "hello", "version": VERSION})
        return self._head

    def _heard(self, message: Message) -> int | None:
        """What node 0 says; the exit code where that is the end."""
        try:
            return self._hear(message)
        except LauncherError:
            raise
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ProtocolError(
                f"node {self._node}: {self._dialer.name} says what cannot be read: {error!r}"
            ) from error

    def _hear(self, message: Message) -> int | None:
        match message["op"]:
            case "welcome":
                self._head.keep_to(float(message["beat_s"]), float(message["lost_s"]))
                nodes = len(self._job.hosts)
                self._say(f"node {self._node} of {nodes} is checked by {self._dialer.name}")
            case "refused":
                text = str(message["text"])[:_MOST_TEXT]
                self._say(f"xla-run: {self._dialer.name} refuses node {self._node}: {text}")
                return int(message["exit_code"]) or int(ExitCode.INTERNAL)
            case "ended":
                text = str(message["text"])[:_MOST_TEXT]
                self._say(f"node {self._node} was checked by {self._dialer.name}: {text}")
                return int(message["exit_code"])
            case "config":
                self._begin(str(message["token"]), str(message["question"]["device"]))
            case _ if self._probe is not None:
                self._probe.hear(message)
        return None

    def _begin(self, token: str, device: str) -> None:
        if device and device not in devices.KINDS:
            raise ProtocolError(f"node 0 names a device {device!r}, which is unknown here")
        question = {**self._question, "device": device, "address": self._address}
        self._probe = Probe(self, {"token": token, "question": question})
        threading.Thread(target=self._probe.run, daemon=True, name="probe").start()
