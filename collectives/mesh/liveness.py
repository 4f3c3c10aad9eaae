"""Which ranks have ended, also on other hosts: told by the end of their connections.

Each rank holds a TCP connection to rank 0 as long as it lives; the kernel closes it when the
process ends, however that happens. Rank 0 writes who has ended into the key-value store, where the
ranks that wait for it look. The end of rank 0 is seen by each rank itself. A host that vanishes
without a word is noticed after 20 s by keepalive.

Only a job with a secret has this: a stranger must not be able to end a rank in its name. Where no
connection comes about (a firewall), nothing is known here, and the beats of `agreement` decide.
"""

import contextlib
import os
import selectors
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from torch_xdist.collectives.errors import CollectiveError
from torch_xdist.collectives.mesh.key_value_store import KeyValueStore
from torch_xdist.collectives.messages.handshake import Greeting, greet

_PLACE = "xdist/liveness"
_NAME = "torch-xdist liveness"  # what the proofs of the handshake are for
_START_S = 60.0
_GREETING_S = 10.0
_BREAK_S = 0.05
_RANK_BYTES = 4
_KEEPALIVE = (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))

_sockets: set[socket.socket] = set()


class Liveness:
    """One rank's part.

    Args:
        coordinator: "host:port" of the coordination service; the ranks reach each other over the
            network interface that leads there.
    """

    def __init__(self, rank: int, store: KeyValueStore, coordinator: str, secret: bytes) -> None:
        self._rank, self._store, self._secret = rank, store, secret
        self._ended: set[int] = set()
        self._to_first: socket.socket | None = None
        if rank == 0:
            listener = _kept(socket.create_server((_own_address(coordinator), 0), backlog=1024))
            host, port = listener.getsockname()[:2]
            store.put(_PLACE, f"{host}:{port}".encode())
            work = _Listening(listener, self._note_end, secret).run
        else:
            work = self._connect
        threading.Thread(target=work, name="xdist-liveness", daemon=True).start()

    def has_ended(self, rank: int) -> bool:
        """Whether `rank` is known to have ended."""
        if rank not in self._ended and rank != self._rank and self._look(rank):
            self._ended.add(rank)
        return rank in self._ended

    def _look(self, rank: int) -> bool:
        if rank == 0:
            return self._to_first is not None and _is_closed(self._to_first)
        if self._rank == 0:
            return False  # it would be in the set
        try:
            return self._store.look(f"{_PLACE}/{rank}") is not None
        except CollectiveError:
            return False

    def _note_end(self, rank: int) -> None:
        self._ended.add(rank)
        with contextlib.suppress(CollectiveError, RuntimeError):
            self._store.put(f"{_PLACE}/{rank}", b"ended")

    def _connect(self) -> None:
        with contextlib.suppress(CollectiveError, OSError, RuntimeError):
            found = self._store.get(_PLACE, _START_S)
            if found is None:
                return
            host, _, port = found.decode().rpartition(":")
            sock = _kept(socket.create_connection((host, int(port)), _GREETING_S))
            greet(sock, _NAME, self._secret)
            sock.sendall(self._rank.to_bytes(_RANK_BYTES, "big"))
            # Else a look at it would wait.
            sock.settimeout(None)
            self._to_first = sock


class _Listening:
    """Rank 0's side: one thread that sees the connections of the others end."""

    def __init__(
        self, listener: socket.socket, note_end: Callable[[int], None], secret: bytes
    ) -> None:
        self._listener, self._note_end, self._secret = listener, note_end, secret
        self._selector = selectors.DefaultSelector()
        self._greetings: dict[socket.socket, Greeting] = {}
        self._said: dict[socket.socket, bytes] = {}

    def run(self) -> None:
        """Serve for ever."""
        self._selector.register(self._listener, selectors.EVENT_READ)
        while True:
            for key, _ in self._selector.select():
                sock: Any = key.fileobj
                if sock is self._listener:
                    self._accept()
                elif not self._goes_on(sock):
                    self._selector.unregister(sock)
                    _sockets.discard(sock)
                    sock.close()

    def _accept(self) -> None:
        try:
            sock = _kept(self._listener.accept()[0])
        except OSError:
            time.sleep(_BREAK_S)  # no descriptor is left, say
            return
        self._greetings[sock] = Greeting(sock, _NAME, self._secret)
        self._selector.register(sock, selectors.EVENT_READ)

    def _goes_on(self, sock: socket.socket) -> bool:
        greeting = self._greetings.get(sock)
        if greeting is not None:
            proved = greeting.read_ready()
            if proved is not None:
                del self._greetings[sock]
            if proved:
                self._said[sock] = b""
            return proved is not False
        try:
            data = sock.recv(_RANK_BYTES, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return True
        except OSError:
            data = b""
        self._said[sock] += data
        if data:
            return len(self._said[sock]) <= _RANK_BYTES
        said = self._said.pop(sock)
        if len(said) == _RANK_BYTES:
            self._note_end(int.from_bytes(said, "big"))
        return False


def _kept(sock: socket.socket) -> socket.socket:
    """A socket that a forked child does not keep open, and that notices a host that vanished."""
    _sockets.add(sock)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE:
        sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return sock


def _is_closed(sock: socket.socket) -> bool:
    try:
        return sock.recv(1, socket.MSG_DONTWAIT | socket.MSG_PEEK) == b""
    except (BlockingIOError, InterruptedError):
        return False
    except OSError:
        return True


def _own_address(coordinator: str) -> str:
    """This host's address on the way to the coordination service."""
    host, _, port = coordinator.rpartition(":")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host.strip("[]"), int(port)))  # sends nothing
        return probe.getsockname()[0]


def _close_in_child() -> None:
    for sock in _sockets:
        sock.close()


os.register_at_fork(after_in_child=_close_in_child)
