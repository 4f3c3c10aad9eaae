"""TCP connections between ranks of different hosts, made when a group first needs them.

Each rank listens at its host's address on the way to the coordination service, and tells the others
where through the store. Of two ranks the higher one dials. Both prove that they know the job's
secret before anything else is read; without a secret (another launcher handed out none) the proof
says no more than that both name the same job, as with gloo.
"""

import contextlib
import os
import select
import socket
import struct
import threading
import time
import weakref
from typing import NamedTuple

from torch_xdist.collectives.errors import CollectiveError, StrangerError
from torch_xdist.collectives.mesh.liveness import keep_alive
from torch_xdist.collectives.messages.handshake import ServerHandshake, authenticate
from torch_xdist.collectives.messages.server import BACKLOG
from torch_xdist.collectives.workers import Workers

_HELLO = struct.Struct("!IIII")  # who dials, whom, a number of the group, which of the pair's wires
_HANDSHAKE_S = 30.0
_CONNECT_S = 10.0
_DIAL_S = 30.0  # the other rank listens before it tells where
_NAP_S = 0.2
_STRANGERS = 64  # connections that may be about to prove themselves at once
_BUFFER_BYTES = 4 * 2**20

_sockets: "weakref.WeakSet[socket.socket]" = weakref.WeakSet()


class Key(NamedTuple):
    """Which wire: to whom, for which group, which one of the pair."""

    rank: int
    group: int
    stream: int


class Door:
    """Where the wires that others dial arrive.

    Args:
        name: of the job; what the proofs are for.
    """

    def __init__(self, rank: int, address: str, name: str, secret: bytes) -> None:
        self._rank, self._name, self._secret = rank, name, secret
        self._arrived: dict[Key, socket.socket] = {}
        self._changed = threading.Condition()
        self._coming = threading.Semaphore(_STRANGERS)
        self._workers = Workers("xdist-door")
        self._listener = socket.create_server((address, 0), backlog=BACKLOG)
        _sockets.add(self._listener)
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._listen, name="xdist-door", daemon=True).start()

    def take(self, key: Key, wait_s: float) -> socket.socket | None:
        """The wire that another rank has dialed; None where it does not come in time."""
        with self._changed:
            self._changed.wait_for(lambda: key in self._arrived, wait_s)
            return self._arrived.pop(key, None)

    def _listen(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                # No descriptors, or no memory: whoever dials tries again.
                time.sleep(_NAP_S)
                continue
            if not self._coming.acquire(blocking=False):
                sock.close()
                continue
            try:
                self._workers.run(lambda sock=sock: self._welcome(sock))  # type: ignore[misc]
            except RuntimeError:
                self._coming.release()
                sock.close()

    def _welcome(self, sock: socket.socket) -> None:
        try:
            with contextlib.suppress(OSError, CollectiveError, struct.error):
                key = self._proved(sock)
                if key is not None:
                    ready(sock)
                    with self._changed:
                        self._arrived[key] = sock
                        self._changed.notify_all()
                    return
            sock.close()
        finally:
            self._coming.release()

    def _proved(self, sock: socket.socket) -> Key | None:
        """What a rank of this job dialed for; None of a stranger."""
        handshake = ServerHandshake(sock, self._name, self._secret)
        limit_s = time.monotonic() + _HANDSHAKE_S
        proved: bool | None = None
        while proved is None:
            left_s = limit_s - time.monotonic()
            if left_s <= 0 or not _is_readable(sock, left_s):
                return None
            proved = handshake.read_ready()
        if not proved:
            return None
        sock.settimeout(_HANDSHAKE_S)
        hello = b""
        while len(hello) < _HELLO.size:
            piece = sock.recv(_HELLO.size - len(hello))
            if not piece:
                return None
            hello += piece
        rank, target, group, stream = _HELLO.unpack(hello)
        sock.sendall(b"\1")
        return Key(rank, group, stream) if target == self._rank else None


def _is_readable(sock: socket.socket, wait_s: float) -> bool:
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(wait_s * 1000))


def dial(rank: int, key: Key, where: str, name: str, secret: bytes) -> socket.socket:
    """A wire to the door of `key.rank`, which is at `where` ("host:port").

    Raises:
        CollectiveError: nobody can be reached there, or nobody answers.
        StrangerError: who listens there does not belong to this job.
    """
    host, _, port = where.rpartition(":")
    limit_s = time.monotonic() + _DIAL_S
    while True:
        sock: socket.socket | None = None
        try:
            sock = socket.create_connection((host, int(port)), _CONNECT_S)
            sock.settimeout(_HANDSHAKE_S)
            authenticate(sock, name, secret)
            sock.sendall(_HELLO.pack(rank, key.rank, key.group, key.stream))
            if sock.recv(1) != b"\1":
                raise ConnectionResetError("the other end closed the connection")
        except BaseException as error:
            if sock is not None:
                sock.close()
            if isinstance(error, StrangerError) or not isinstance(error, OSError):
                raise
            if time.monotonic() > limit_s:
                raise CollectiveError(
                    f"rank {rank} cannot reach rank {key.rank} at {where} ({error}); hosts must "
                    "reach each other on any port: open the firewall between them, or look at the "
                    f"output of rank {key.rank}; XDIST_TRANSPORT=gloo goes another way"
                ) from None
            time.sleep(_NAP_S)
        else:
            ready(sock)
            return sock


def ready(sock: socket.socket) -> None:
    """Make a connection one that `traffic` uses."""
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    keep_alive(sock)
    _sockets.add(sock)


def _close_in_child() -> None:
    """A forked child must not keep the wires of a rank that ended."""
    for sock in _sockets:
        sock.close()


os.register_at_fork(after_in_child=_close_in_child)
