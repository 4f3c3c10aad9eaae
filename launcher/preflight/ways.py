"""The ways between hosts: ports that are open for a moment, who reaches them, and how fast.

Every host listens at two ports of its address: one as the meeting place of the ranks gets it, one
as gloo's and NCCL's sockets get theirs. A connection is only spoken to once it has said the token,
which the hosts of one check have got through ssh.
"""

import contextlib
import secrets
import socket
import struct
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypedDict

from torch_xdist.launcher.on_host.coordinator import free_port
from torch_xdist.system import addresses

TOKEN_BYTES = 16
_MOST_THREADS = 128
_QUIET_S = 2.0
_ECHOES = 5
_ECHO, _TAKE, _GIVE = b"e", b"t", b"g"
_BLOCK = bytes(1 << 20)
_TOLD = struct.Struct("!Qd")

Address = tuple[str, int]


class Reached(TypedDict, total=False):
    """How a host came to another one: `ms` of the connection, else `why_not` and the `port`."""

    ms: float
    why_not: str
    port: int


class Rate(TypedDict, total=False):
    """Round trip, and bytes per second to the other host and from it; or `why_not`."""

    round_trip_ms: float
    there_bytes_per_s: float
    back_bytes_per_s: float
    why_not: str


def new_token() -> str:
    """What the hosts of one check know, in hexadecimal digits."""
    return secrets.token_hex(TOKEN_BYTES)


class Listener:
    """Two open ports at an address of this host, for as long as this process lives.

    Raises:
        OSError: it is no address of this host.
    """

    def __init__(self, address: str, token: str) -> None:
        self._token = bytes.fromhex(token)
        self.ports: list[int] = []
        own = addresses.listener(address, 0, 1024)
        meeting = addresses.listener(address, free_port(address), 1024)
        for sock in (meeting, own):
            self.ports.append(sock.getsockname()[1])
            threading.Thread(target=self._accept, args=(sock,), daemon=True).start()

    def _accept(self, sock: socket.socket) -> None:
        while True:
            with contextlib.suppress(OSError):
                came, _ = sock.accept()
                threading.Thread(target=self._serve, args=(came,), daemon=True).start()

    def _serve(self, came: socket.socket) -> None:
        with came, contextlib.suppress(OSError):
            came.settimeout(_QUIET_S)
            if not secrets.compare_digest(_exactly(came, TOKEN_BYTES), self._token):
                return
            match _exactly(came, 1):
                case b"e":
                    for _ in range(_ECHOES):
                        came.sendall(_exactly(came, 1))
                case b"t":
                    came.sendall(_TOLD.pack(*_take(came)))
                case b"g":
                    _give(came, _TOLD.unpack(_exactly(came, _TOLD.size))[1])


def reach(places: Mapping[int, Sequence[Address]], limit_s: float) -> dict[int, Reached]:
    """Try the way to every place of every host, all at once."""

    def tried(addresses: Sequence[Address]) -> Reached:
        best_ms = float("inf")
        for address in addresses:
            began_s = time.perf_counter()
            try:
                socket.create_connection(address, limit_s).close()
            except OSError as error:
                return {"why_not": error.strerror or str(error), "port": address[1]}
            best_ms = min(best_ms, (time.perf_counter() - began_s) * 1000)
        return {"ms": round(best_ms, 3)}

    with ThreadPoolExecutor(max(1, min(len(places), _MOST_THREADS))) as threads:
        return dict(zip(places, threads.map(tried, places.values()), strict=True))


def rate(address: Address, token: str, seconds: float) -> Rate:
    """Measure the way to one place for about so long, half of it in each direction."""
    try:
        return {
            "round_trip_ms": _round_trip_ms(address, token),
            "there_bytes_per_s": _there(address, token, seconds / 2),
            "back_bytes_per_s": _back(address, token, seconds / 2),
        }
    except OSError as error:
        return {"why_not": error.strerror or str(error)}


def _round_trip_ms(address: Address, token: str) -> float:
    with _opened(address, token, _ECHO) as sock:
        trips_s = []
        for _ in range(_ECHOES):
            began_s = time.perf_counter()
            sock.sendall(b".")
            _exactly(sock, 1)
            trips_s.append(time.perf_counter() - began_s)
    return round(min(trips_s) * 1000, 3)


def _there(address: Address, token: str, seconds: float) -> float:
    with _opened(address, token, _TAKE) as sock:
        _give(sock, seconds)
        count, took_s = _TOLD.unpack(_exactly(sock, _TOLD.size))
    return float(count / took_s)


def _back(address: Address, token: str, seconds: float) -> float:
    with _opened(address, token, _GIVE) as sock:
        sock.sendall(_TOLD.pack(0, seconds))
        count, took_s = _take(sock)
    return count / took_s


def _opened(address: Address, token: str, what: bytes) -> socket.socket:
    sock = socket.create_connection(address, _QUIET_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.sendall(bytes.fromhex(token) + what)
    return sock


def _give(sock: socket.socket, seconds: float) -> None:
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        sock.send(_BLOCK)
    sock.shutdown(socket.SHUT_WR)


def _take(sock: socket.socket) -> tuple[int, float]:
    """Bytes until the other side ends, and the seconds from the first of them on."""
    buffer, count, began_s = bytearray(len(_BLOCK)), 0, 0.0
    while got := sock.recv_into(buffer):
        began_s = began_s or time.perf_counter()
        count += got
    return count, max(time.perf_counter() - began_s, 1e-6)


def _exactly(sock: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        data = sock.recv(size - len(found))
        if not data:
            raise ConnectionError("the other side has closed the connection")
        found += data
    return found


def json_places(places: Mapping[str, Any]) -> dict[int, list[Address]]:
    """The places of a message, by the number of the host."""
    return {int(index): [(str(a), int(p)) for a, p in found] for index, found in places.items()}
