"""A node's way to node 0: tries until that is there, and says what it waits for.

Nodes start in any order, minutes apart, and where a scheduler makes them the name of node 0 may not
resolve until it runs. So whatever a try ends with is a reason to try again, within the limit of the
rendezvous; only a secret that is wrong, or another release, is no matter of time.
"""

import socket
import threading
import time
from collections.abc import Callable

from torch_xdist.launcher.facts.errors import HostError, RendezvousError
from torch_xdist.launcher.facts.settings import Timeouts
from torch_xdist.launcher.sealed import Sealed, as_node
from torch_xdist.system import addresses

_TRY_S = 5.0
_FIRST_PAUSE_S, _MOST_PAUSE_S = 0.1, 2.0


class Dialer:
    """Connects one node.

    Args:
        where: the name and port of node 0.
        note: shows a line.
    """

    def __init__(
        self,
        node: int,
        where: tuple[str, int],
        secret: bytes,
        limits: Timeouts,
        note: Callable[[str], None],
    ) -> None:
        self._node, self._where, self._secret = node, where, secret
        self._limit_s, self._next_notice_s = limits.rendezvous_s, limits.notice_s
        self._note = note
        self._stop = threading.Event()

    @property
    def name(self) -> str:
        """Node 0, as the user named it."""
        return f"node 0 at {self._where[0]}:{self._where[1]}"

    def connect(self) -> tuple[socket.socket, Sealed]:
        """The connection, both sides of which have proven the secret.

        Raises:
            RendezvousError: it was not there in time, or `stop` was called.
            AuthError: it has another secret.
            PreflightError: it speaks another version.
        """
        since_s, pause_s = time.monotonic(), _FIRST_PAUSE_S
        while True:
            try:
                return self.once(_TRY_S)
            except HostError as error:
                why = str(error)
            waited_s = time.monotonic() - since_s
            if waited_s >= self._limit_s or self._stop.is_set():
                raise RendezvousError(
                    f"node {self._node}: {self.name} was not there in {waited_s:.0f} s: {why}; "
                    "start it, see that a firewall lets this port through, or raise "
                    "--rendezvous-timeout"
                )
            if waited_s >= self._next_notice_s:
                self._next_notice_s = 3 * waited_s
                self._note(f"node {self._node} waits for {self.name}: {why}, {waited_s:.0f} s")
            self._stop.wait(min(pause_s, max(0.05, self._limit_s - waited_s)))
            pause_s = min(2 * pause_s, _MOST_PAUSE_S)

    def stop(self) -> None:
        """Try no more."""
        self._stop.set()

    def once(self, limit_s: float) -> tuple[socket.socket, Sealed]:
        """One try, of which each half ends within the limit.

        Raises:
            HostError: nobody is there; its cause is a ConnectionRefusedError where that is certain.
            AuthError: it has another secret.
            PreflightError: it speaks another version.
        """
        sock = self._connected(limit_s)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return sock, as_node(sock, self._secret, limit_s)
        except BaseException:
            sock.close()
            raise

    def _connected(self, limit_s: float) -> socket.socket:
        """To the first of its addresses that answers."""
        try:
            where = addresses.bare(self._where[0]), self._where[1]
            found = socket.getaddrinfo(*where, type=socket.SOCK_STREAM)
        except OSError as error:
            raise HostError(f"the name does not resolve ({error.strerror})") from None
        why, cause = "it has no address", None
        # IPv4 first: so the ranks of all nodes meet over one kind.
        for family, *_, address in sorted(found, key=lambda one: one[0] != socket.AF_INET):
            sock = socket.socket(family, socket.SOCK_STREAM)
            sock.settimeout(limit_s)
            try:
                sock.connect(address)
                return sock
            except OSError as error:
                sock.close()
                why, cause = (error.strerror or str(error)).lower(), error
        raise HostError(why) from cause
