"""TCP connections between ranks of different hosts, made when a group first needs them.

Each rank listens at its host's address on the way to the coordination service. Who dials and who
listens prove to each other that they know the job's secret before anything else is read.
"""

import contextlib
import json
import os
import select
import socket
import struct
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from torch_xdist.collectives.errors import CollectiveError, StrangerError
from torch_xdist.collectives.mesh.liveness import keep_alive
from torch_xdist.collectives.messages.handshake import ServerHandshake, authenticate
from torch_xdist.collectives.messages.server import BACKLOG
from torch_xdist.system import addresses

_NAME = "torch-xdist wires"  # what the proofs of the handshake are for
_SIZE = struct.Struct("!I")
_MOST_HELLO_BYTES = 2**20
_HANDSHAKE_S = 30.0
_CONNECT_S = 10.0
_DIAL_S = 30.0
_NAP_S = 0.2
_STRANGERS = 64  # connections that may be about to prove themselves at once
_ACCEPTED = b"\1"

_sockets: "weakref.WeakSet[socket.socket]" = weakref.WeakSet()
Hello = dict[str, Any]


class Door:
    """Where the wires that others dial arrive.

    Args:
        key: by which the ranks of the job know each other.
        welcome: called with each wire and what its rank says, on a thread of its own.
    """

    def __init__(
        self,
        address: str,
        key: bytes,
        welcome: Callable[[socket.socket, Hello], None],
    ) -> None:
        self._key, self._welcome = key, welcome
        self._coming = threading.Semaphore(_STRANGERS)
        self._listener = addresses.listener(address, 0, BACKLOG)
        _sockets.add(self._listener)
        self.where = addresses.joined(address, self._listener.getsockname()[1])
        threading.Thread(target=self._listen, name="xdist-door", daemon=True).start()

    def _listen(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                # No descriptors, or no memory: whoever dials tries again.
                time.sleep(_NAP_S)
                continue
            _sockets.add(sock)
            if not self._coming.acquire(blocking=False):
                sock.close()
                continue
            thread = threading.Thread(
                target=self._serve, args=(sock,), name="xdist-mirror", daemon=True
            )
            try:
                thread.start()
            except RuntimeError:
                self._coming.release()
                sock.close()

    def _serve(self, sock: socket.socket) -> None:
        with contextlib.closing(sock):
            hello = None
            try:
                with contextlib.suppress(OSError, CollectiveError, ValueError):
                    hello = self._proved(sock)
            finally:
                self._coming.release()
            if hello is not None:
                ready(sock)
                self._welcome(sock, hello)

    def _proved(self, sock: socket.socket) -> Hello | None:
        """What a rank of this job says first; None of a stranger."""
        handshake = ServerHandshake(sock, _NAME, self._key)
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
        (size,) = _SIZE.unpack(exactly(sock, _SIZE.size))
        if size > _MOST_HELLO_BYTES:
            return None
        hello = json.loads(exactly(sock, size))
        sock.sendall(_ACCEPTED)
        return hello


def dial(rank: int, other: int, where: str, key: bytes, hello: Hello) -> socket.socket:
    """A wire from `rank` to the door of rank `other`, which is at `where` ("host:port").

    Raises:
        CollectiveError: nobody can be reached there, or nobody answers.
        StrangerError: who listens there does not belong to this job.
    """
    text = json.dumps(hello).encode()
    limit_s = time.monotonic() + _DIAL_S
    while True:
        sock: socket.socket | None = None
        try:
            sock = socket.create_connection(addresses.split(where), _CONNECT_S)
            _sockets.add(sock)
            sock.settimeout(_HANDSHAKE_S)
            authenticate(sock, _NAME, key)
            sock.sendall(_SIZE.pack(len(text)) + text)
            if exactly(sock, 1) == _ACCEPTED:
                ready(sock)
                return sock
            raise ConnectionResetError("the other end answered something else")
        except BaseException as error:
            if sock is not None:
                sock.close()
            if isinstance(error, StrangerError) or not isinstance(error, OSError):
                raise
            if time.monotonic() > limit_s:
                raise CollectiveError(
                    f"rank {rank} cannot reach rank {other} at {where} ({error}); hosts must reach "
                    "each other on any port: open the firewall between them, or look at the output "
                    f"of rank {other}; XDIST_TRANSPORT=gloo goes another way"
                ) from None
        time.sleep(_NAP_S)


def ready(sock: socket.socket) -> None:
    """From now on it waits as long as it must, and the kernel notices a host that vanished."""
    sock.settimeout(None)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    keep_alive(sock)


def exactly(sock: socket.socket, count: int) -> bytes:
    """The next bytes. Raises ConnectionError where it ends before."""
    data = bytearray(count)
    into(sock, memoryview(data))
    return bytes(data)


def into(sock: socket.socket, view: memoryview) -> None:
    """Fill this with the next bytes. Raises ConnectionError where it ends before."""
    while view.nbytes:
        count = sock.recv_into(view)
        if not count:
            raise ConnectionResetError("the other end closed the connection")
        view = view[count:]


def _is_readable(sock: socket.socket, wait_s: float) -> bool:
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(wait_s * 1000))


def _close_in_child() -> None:
    """A forked child must not keep the wires of a rank that ended."""
    for sock in _sockets:
        sock.close()


os.register_at_fork(after_in_child=_close_in_child)
