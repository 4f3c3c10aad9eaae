"""Which ranks have ended, also on other hosts: told by the end of their connections.

Each rank holds a TCP connection to a server of rank 0 as long as it lives; the kernel closes it
when the process ends, however that happens. Rank 0 writes who has ended into the key-value store,
where the ranks that wait for it look. The end of rank 0 is seen by each rank itself. A host that
vanishes without a word is noticed after 20 s by keepalive.

Only a job with a secret has this: a stranger must not be able to end a rank in its name. Where no
connection comes about (a firewall), nothing is known here, and the heartbeats of `agreement`
decide.
"""

import contextlib
import functools
import os
import socket
import threading
import weakref
from collections.abc import Callable

from torch_xdist.collectives.errors import CollectiveError
from torch_xdist.collectives.mesh.key_value_store import KeyValueStore
from torch_xdist.collectives.messages.handshake import authenticate
from torch_xdist.collectives.messages.server import BACKLOG, Request, Server
from torch_xdist.system import addresses
from torch_xdist.system.frames import Link

_PLACE = "xdist/liveness"
_NAME = "torch-xdist liveness"  # what the proofs of the handshake are for
_START_S = 60.0
_CONNECT_S = 10.0
_KEEPALIVE = (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))

_to_first_ranks: "weakref.WeakSet[socket.socket]" = weakref.WeakSet()


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
            self._serve(coordinator)
        else:
            threading.Thread(target=self._connect, name="xdist-liveness", daemon=True).start()

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

    def _serve(self, coordinator: str) -> None:
        listener = addresses.listener(own_address(coordinator), 0, BACKLOG)
        keep_alive(listener)  # what it accepts inherits that
        host, port = listener.getsockname()[:2]
        Server(_NAME, self._secret, {"rank": self._note_rank}, listener=listener)
        self._store.put(_PLACE, addresses.joined(host, port).encode())

    def _note_rank(self, request: Request) -> None:
        request.at_end(functools.partial(self._note_end, request.message["rank"]))

    def _note_end(self, rank: int) -> None:
        self._ended.add(rank)
        with contextlib.suppress(CollectiveError, RuntimeError):
            self._store.put(f"{_PLACE}/{rank}", b"ended")

    def _connect(self) -> None:
        with contextlib.suppress(CollectiveError, OSError, RuntimeError):
            found = self._store.get(_PLACE, _START_S)
            if found is None:
                return
            sock = socket.create_connection(addresses.split(found.decode()), _CONNECT_S)
            _to_first_ranks.add(sock)
            keep_alive(sock)
            authenticate(sock, _NAME, self._secret)
            # Else a look at it would wait.
            sock.settimeout(None)
            if Link(sock).send({"kind": "rank", "rank": self._rank}):
                self._to_first = sock


def knowledge(
    rank: int, store: KeyValueStore, coordinator: str, secret: bytes
) -> Callable[[int], bool]:
    """Whether a rank is known to have ended; without a secret of none."""
    return Liveness(rank, store, coordinator, secret).has_ended if secret else lambda rank: False


def keep_alive(sock: socket.socket) -> None:
    """Let the kernel notice a host that vanished."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE:
        sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _is_closed(sock: socket.socket) -> bool:
    try:
        return sock.recv(1, socket.MSG_DONTWAIT | socket.MSG_PEEK) == b""
    except (BlockingIOError, InterruptedError):
        return False
    except OSError:
        return True


def own_address(coordinator: str) -> str:
    """This host's address on the way to the coordination service."""
    host, port = addresses.split(coordinator)
    found = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
    # Where a name has addresses of both kinds, IPv4 is what all else here has used.
    kind, *_, where = min(found, key=lambda one: one[0] != socket.AF_INET)
    with socket.socket(kind, socket.SOCK_DGRAM) as probe:
        probe.connect(where)  # sends nothing
        return str(probe.getsockname()[0])


def _close_in_child() -> None:
    """A forked child must not keep the connection of a rank that ended."""
    for sock in _to_first_ranks:
        sock.close()


os.register_at_fork(after_in_child=_close_in_child)
