"""Who is believed to be another host of a job without a launcher, before a word of it is read.

Where XLA_RUN_SECRET is set on all hosts, each side proves that it knows it, and what they say is
sealed, as between nodes (`sealed`). Where it is not, a connection must come from an address of the
hosts that are listed, as in the metadata of a TPU slice; where no list is known, anybody is heard.
Whoever is not believed is named once by its address, and changes nothing.
"""

import contextlib
import ipaddress
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence

from torch_xdist.launcher.facts.cluster import HostOfMany
from torch_xdist.launcher.facts.errors import AuthError, HostError, LauncherError
from torch_xdist.launcher.sealed import Sealed, as_head, as_node
from torch_xdist.launcher.tls import key_pair
from torch_xdist.system import addresses
from torch_xdist.system.frames import Frame, Link

# A stranger gets little.
MOST_BYTES = 1 << 16
_MOST_AT_ONCE = 64
# One machine that knocks without end must leave room for others.
_MOST_OF_ONE = 8
_PROOF_S = 10.0
_DIAL_S = 5.0
_KNOWN_S = 1.0
_MOST_NOTES = 20
_NAME = "hosts"


class SealedLink(Link):
    """Frames that only the two ends can make, or open."""

    def __init__(self, sock: socket.socket, sealed: Sealed) -> None:
        super().__init__(sock, MOST_BYTES, 0)
        self._opener, self._sealer = sealed.opener, sealed.sealer

    def _send_all(self, parts: Sequence[bytes], descriptors: Sequence[int]) -> None:
        self.sock.sendall(self._sealer.sealed(b"".join(parts)))

    def read_ready(self) -> tuple[list[Frame], bool]:
        """As of `Link`; a record without its seal is a FrameError."""
        try:
            data = self.sock.recv(MOST_BYTES, socket.MSG_DONTWAIT)
        except (BlockingIOError, InterruptedError):
            return [], True
        except OSError:
            return [], False
        return list(self._decoder.feed(self._opener.opened(data))), bool(data)


class Entrance:
    """Host 0 hears those who are believed.

    Args:
        part: who the hosts are.
        secret: what all hosts know; b"": nothing.
        believed: called with the link of each, on any thread.
        warn: shows a line, about those who are not; on any thread.
    """

    def __init__(
        self,
        part: HostOfMany,
        secret: bytes,
        believed: Callable[[Link], None],
        warn: Callable[[str], None],
    ) -> None:
        self._part, self._secret = part, secret
        self._believed, self._warn = believed, warn
        self._pair = key_pair(warn) if secret else None
        self._turn = threading.Lock()
        self._inside: Counter[str] = Counter()
        self._told: set[str] = set()
        self._known: frozenset[str] = frozenset()
        self._known_until_s = 0.0

    def meet(self, sock: socket.socket, address: str) -> None:
        """Somebody has come; never waits."""
        address = plain(address)
        with self._turn:
            is_full = self._inside.total() >= _MOST_AT_ONCE
            has_room = not is_full and self._inside[address] < _MOST_OF_ONE
            if has_room:
                self._inside[address] += 1
        if not has_room:
            sock.close()
            return
        threading.Thread(target=self._look, args=(sock, address), daemon=True).start()

    def _look(self, sock: socket.socket, address: str) -> None:
        try:
            link = self._proven(sock) if self._secret else self._listed(sock, address)
        except (LauncherError, OSError) as error:
            sock.close()
            self._refuse(address, str(error))
        else:
            self._believed(link)
        finally:
            with self._turn:
                self._inside[address] -= 1
                if not self._inside[address]:
                    del self._inside[address]

    def _proven(self, sock: socket.socket) -> Link:
        return SealedLink(sock, as_head(sock, self._secret, _NAME, _PROOF_S, self._pair))

    def _listed(self, sock: socket.socket, address: str) -> Link:
        known = self._addresses()
        if known and address not in known:
            raise HostError(
                f"it is no address of the hosts of {self._part.launcher} "
                f"({', '.join(self._part.names[:8])}); if it is one of them, set the same "
                "XLA_RUN_SECRET on all hosts, by which they know each other then"
            )
        return Link(sock, MOST_BYTES, 0)

    def _addresses(self) -> frozenset[str]:
        """Those to which the hosts' names lead; they may get them while they start."""
        with self._turn:
            if time.monotonic() < self._known_until_s:
                return self._known
        found = frozenset(one for name in self._part.names for one in _addresses_of(name))
        with self._turn:
            self._known, self._known_until_s = found, time.monotonic() + _KNOWN_S
        return found

    def _refuse(self, address: str, why: str) -> None:
        """Tell it once for each address, and not of more than a few: anybody can connect."""
        with self._turn:
            is_new = address not in self._told and len(self._told) < _MOST_NOTES
            if is_new:
                self._told.add(address)
        if is_new:
            self._warn(f"warning: a connection from {address} was refused: {why}")


def dialed(part: HostOfMany, secret: bytes) -> Link | None:
    """A connection to host 0; None where nobody is there.

    Raises:
        AuthError: who listens there has another secret, or none.
    """
    where = (part.master_addr, part.master_port)
    try:
        sock = socket.create_connection(where, _DIAL_S, _own(part))
    except OSError:
        return None
    if sock.getsockname() == sock.getpeername():
        sock.close()  # nobody listens there: the kernel has connected it with itself
        return None
    if not secret:
        return Link(sock, MOST_BYTES, 0)
    try:
        sealed = as_node(sock, secret, _DIAL_S)
        if sealed.job_id != _NAME:
            raise AuthError("it is node 0 of a job of --nnodes; give one of both another port")
        return SealedLink(sock, sealed)
    except HostError as error:
        sock.close()
        raise Silent(str(error)) from None
    except BaseException:
        sock.close()
        raise


class Silent(HostError):
    """Who listens at host 0 has proven nothing; perhaps it has no secret."""


def _own(part: HostOfMany) -> tuple[str, int] | None:
    """Where this host is to come from: a machine may have several addresses, and one is listed."""
    for address in _addresses_of(part.names[part.host_index]) if part.names else ():
        is_near = ipaddress.ip_address(address).is_loopback
        with contextlib.suppress(OSError, ValueError):
            target = ipaddress.ip_address(part.master_addr)
            # A name of this machine may lead to loopback, from where no other one is reached.
            family = addresses.family(address)
            if is_near != target.is_loopback or family != addresses.family(str(target)):
                continue
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                probe.bind((address, 0))
            return address, 0
    return None


def _addresses_of(name: str) -> list[str]:
    return [plain(address) for address in addresses.of_name(name)]


def plain(address: str) -> str:
    """An address as text that can be compared: an IPv4 one inside IPv6 is itself."""
    with contextlib.suppress(ValueError):
        made = ipaddress.ip_address(address.partition("%")[0])
        return str(getattr(made, "ipv4_mapped", None) or made)
    return address
