"""The agent's way to its head, on which news goes out and orders come in.

To a head on this host: its stdin is a socket, by which it learns where the head's server is, and at
whose end it knows that the head is gone. To a head elsewhere: stdin and stdout themselves.
"""

import contextlib
import os
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from torch_xdist.launcher.connection import MARK
from torch_xdist.launcher.facts import settings
from torch_xdist.launcher.facts.errors import LauncherError
from torch_xdist.launcher.facts.host import VERSION
from torch_xdist.launcher.on_host.reconnection.resumption import Resumption
from torch_xdist.launcher.pipe_stream import PipeStream
from torch_xdist.launcher.tls import meet
from torch_xdist.system import addresses
from torch_xdist.system.frames import Frame, Link, Message

# What may wait for a slow head before lines are left to the files.
_MOST_PENDING_BYTES = 8 << 20

Post = Callable[[Message, bytes], None]


class Stream(Protocol):
    """What carries messages to the head."""

    @property
    def pending_bytes(self) -> int: ...

    def send(self, message: Mapping[str, Any], blob: bytes = b"") -> None: ...

    def close(self) -> None: ...


class SocketToHead:
    """The head is on this host; stdin is a socket to it, and the control plane is gRPC.

    Args:
        stdin: as a socket.
    """

    def __init__(self, stdin: socket.socket) -> None:
        self._link = Link(stdin)

    def config(self) -> Frame | None:
        """Wait for the head's first message; None where it is gone."""
        return self._link.receive()

    def fileno(self) -> int:
        """Readable when the head may be gone; -1 where its stream says so."""
        return self._link.fileno()

    def is_gone(self) -> bool:
        """Whether stdin has ended; it says nothing after the first message."""
        return not self._link.read_ready()[1]

    def open(self, config: Message, hello: Message, post: Post) -> Stream:
        """The stream; `post` gets every order, and "lost" where it ends."""
        # gRPC takes 0.2 s to import; the nursery is on its way already.
        from torch_xdist.launcher.control import AgentStream

        lost = _lost(post)
        return AgentStream(config["address"], config["token"], hello, post, lost)


class PipesToHead:
    """The head is elsewhere; stdin and stdout are pipes to it.

    Args:
        certificate: the digest of the head's, in hexadecimal digits, where all that is said here is
            inside TLS; "": whoever carries it encrypts it.

    Raises:
        LauncherError: the other side is not the one with that certificate.
    """

    def __init__(self, certificate: str = "") -> None:
        read, write = (os.dup(fd) for fd in (0, 1))
        # What is printed here goes to the head as text, on stderr.
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(2, 1)
        os.close(null)
        tls = None
        if certificate:
            os.write(write, MARK)
            tls = meet(read, write, bytes.fromhex(certificate))
        self._pipes = PipeStream(read, write, is_head=False, tls=tls)

    @classmethod
    def as_told(cls, certificate: Sequence[str]) -> "PipesToHead":
        """Those of a process that was started with such words, and now has its variables."""
        try:
            head = cls(*certificate)
        except LauncherError as error:
            sys.exit(f"no way to xla-run: {error}")
        if certificate and (first := head.config()) is not None:
            settings.publish(first.message["env"])
        return head

    def config(self) -> Frame | None:
        """Wait for the head's first message; None where it is gone."""
        with contextlib.suppress(OSError):
            return self._pipes.first()
        return None

    def fileno(self) -> int:
        """The stream itself tells that the head is gone."""
        return -1

    def is_gone(self) -> bool:
        return False

    def open(self, config: Message, hello: Message, post: Post) -> Stream:
        """The stream; `post` gets every order, and "lost" where it ends, or is silent too long."""
        self._pipes.send({**hello, "op": "hello", "version": VERSION})
        limits = {"beat_s": config["beat_s"], "lost_s": config["lost_s"]}
        if found_at := config.get("found_at"):
            limits["within_s"] = config["reconnect_s"]
            Resumption(found_at["name"], found_at["secret"], self._pipes)
        self._pipes.start(post, _lost(post), **limits)
        return self._pipes


WayToHead = SocketToHead | PipesToHead


def _lost(post: Post) -> Callable[[str], None]:
    return lambda why: post({"op": "lost", "why": why}, b"")


def why_unreachable(address: str, limit_s: float) -> str:
    """Why ranks of this host will not reach "host:port" on another one; "" where they will."""
    try:
        socket.create_connection(addresses.split(address), limit_s).close()
    except OSError as error:
        return error.strerror or str(error)
    return ""


class HeadStream:
    """What the agent tells the head.

    Args:
        way: how the head is reached.
        config: its first message: the number of this host, how often to tell of the ranks.
        hello: what the agent says of itself.
        post: called with every order, on a thread of the stream.
    """

    def __init__(self, way: WayToHead, config: Message, hello: Message, post: Post) -> None:
        self._shown: frozenset[int] = frozenset()
        self._unshown = 0
        self._stream = way.open(config, {**hello, "host_index": config["host_index"]}, post)

    def send(self, message: Message, blob: bytes = b"") -> None:
        """News; queued, never dropped."""
        self._stream.send(message, blob)

    def show_lines_of(self, ranks: Sequence[int]) -> None:
        """From now on the head gets the lines of these ranks."""
        self._shown = frozenset(ranks)

    def show(self, rank: int, lines: list[str], unfinished: str) -> None:
        """Lines of a rank, on the pump's thread; what the head cannot take is only in the files."""
        if rank not in self._shown:
            return
        if self._stream.pending_bytes > _MOST_PENDING_BYTES:
            self._unshown += len(lines)
            return
        unshown, self._unshown = self._unshown, 0
        shown = {"rank": rank, "lines": lines, "unfinished": unfinished, "unshown": unshown}
        self.send({"op": "log", **shown})

    def close(self) -> None:
        """Send what is queued, then end the stream."""
        self._stream.close()
