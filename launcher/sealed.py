"""A TCP connection between two processes that know one secret: each proves it, then seals.

The side that listens (the head) greets with a nonce. The other one (a node) answers with a nonce of
its own and a proof, and only then the head gives its proof and the job's name. A proof is the
HMAC-SHA256, under the secret, of who gives it, the version of this protocol and both nonces: it is
good for this connection and this direction alone, and the secret itself is never sent. Everything
before the proofs has a fixed small size, and nothing of it is parsed but a magic word, a version
and a name.

From then on bytes travel in records: a length, an HMAC-SHA256 of a counter, the length and the
bytes, and the bytes. The two directions have keys of their own, made of the secret and both nonces.
A record that was altered, left out, repeated or moved ends the connection, before anything in it is
read. Records are authenticated, not encrypted.
"""

import contextlib
import hmac
import os
import socket
import struct
import time
from dataclasses import dataclass

from torch_xdist.launcher.facts.errors import AuthError, HostError, PreflightError
from torch_xdist.system.errors import FrameError

VERSION = 1
LEAST_SECRET_BYTES = 16
_MAGIC = b"xla-run nodes\r\n\0"
_HELLO = struct.Struct("!16sH32s")
_NONCE_BYTES = _PROOF_BYTES = 32
_HEAD = struct.Struct("!I32s")
_COUNTED = struct.Struct("!QI")
MOST_RECORD_BYTES = 1 << 20
# Copied sooner than two calls of hmac's are made.
_SMALL_BYTES = 4096
_YES, _NO = b"+", b"-"


class Sealer:
    """Makes records of the bytes that go in one direction."""

    def __init__(self, key: bytes) -> None:
        self._key, self._count = key, 0

    def sealed(self, data: bytes | memoryview) -> bytes:
        """The bytes as records of at most `MOST_RECORD_BYTES` each."""
        parts: list[bytes | memoryview] = []
        view = memoryview(data)
        for start in range(0, len(data), MOST_RECORD_BYTES):
            piece = view[start : start + MOST_RECORD_BYTES]
            parts += [_HEAD.pack(len(piece), _mark(self._key, self._count, piece)), piece]
            self._count += 1
        return b"".join(parts)


class Opener:
    """Takes the records of one direction apart, however the stream is chopped."""

    def __init__(self, key: bytes) -> None:
        self._key, self._count, self._pending = key, 0, bytearray()

    def opened(self, data: bytes) -> bytes:
        """The bytes of all records that `data` completes.

        Raises:
            FrameError: a record is too long, or is not the next one that the other side has sealed.
        """
        self._pending += data
        found = []
        while len(self._pending) >= _HEAD.size:
            size, mark = _HEAD.unpack_from(self._pending)
            if size > MOST_RECORD_BYTES:
                raise FrameError(
                    f"record {self._count}: {size} bytes; at most {MOST_RECORD_BYTES} are read here"
                )
            if len(self._pending) < _HEAD.size + size:
                break
            piece = bytes(self._pending[_HEAD.size : _HEAD.size + size])
            if not hmac.compare_digest(mark, _mark(self._key, self._count, piece)):
                raise FrameError(
                    f"record {self._count}: {size} bytes without the seal of this connection; "
                    "somebody on the way has changed, repeated or left out something"
                )
            del self._pending[: _HEAD.size + size]
            self._count += 1
            found.append(piece)
        return b"".join(found)


@dataclass(frozen=True, slots=True)
class Sealed:
    """A connection whose other side has proven the secret: what is read and written goes here."""

    job_id: str
    opener: Opener
    sealer: Sealer


def as_head(sock: socket.socket, secret: bytes, job_id: str, limit_s: float) -> Sealed:
    """The head's part, with whoever has connected.

    Raises:
        AuthError: it does not know the secret.
        HostError: it is no node, or took longer than the limit.
        PreflightError: it speaks another version of this.
    """
    end_s = time.monotonic() + limit_s
    ours = os.urandom(_NONCE_BYTES)
    _send(sock, _HELLO.pack(_MAGIC, VERSION, ours), end_s)
    theirs = _greeting(sock, end_s)
    proof = _exactly(sock, _PROOF_BYTES, end_s)
    if not hmac.compare_digest(proof, _derived(secret, "node", ours, theirs)):
        with contextlib.suppress(OSError):
            _send(sock, _NO, end_s)
        raise AuthError("it does not know the secret of this job (XLA_RUN_SECRET)")
    name = job_id.encode()
    answer = _YES + bytes([len(name)]) + name
    _send(sock, answer + _derived(secret, "head", ours, theirs, name), end_s)
    to_head, to_node = (_derived(secret, f"from {who}", ours, theirs, name) for who in _SIDES)
    return Sealed(job_id, Opener(to_head), Sealer(to_node))


_SIDES = ("node", "head")


def as_node(sock: socket.socket, secret: bytes, limit_s: float) -> Sealed:
    """A node's part, with whoever listens there.

    Raises:
        AuthError: the head does not take our proof, or has none itself.
        HostError: it is no head, or took longer than the limit.
        PreflightError: it speaks another version of this.
    """
    end_s = time.monotonic() + limit_s
    theirs = _greeting(sock, end_s)
    ours = os.urandom(_NONCE_BYTES)
    proof = _derived(secret, "node", theirs, ours)
    _send(sock, _HELLO.pack(_MAGIC, VERSION, ours) + proof, end_s)
    if _exactly(sock, 1, end_s) != _YES:
        raise AuthError(
            "it refuses this node: XLA_RUN_SECRET is another one there; set the same on all nodes"
        )
    name = _exactly(sock, _exactly(sock, 1, end_s)[0], end_s)
    proof = _exactly(sock, _PROOF_BYTES, end_s)
    if not hmac.compare_digest(proof, _derived(secret, "head", theirs, ours, name)):
        raise AuthError(
            "it does not know the secret of this job, so it is not node 0 of it; see what listens "
            "there, and set the same XLA_RUN_SECRET on all nodes"
        )
    to_head, to_node = (_derived(secret, f"from {who}", theirs, ours, name) for who in _SIDES)
    return Sealed(name.decode("ascii", "replace"), Opener(to_node), Sealer(to_head))


def rank_secret(secret: bytes, job_id: str, attempt: int, salt: bytes) -> bytes:
    """What the ranks of an attempt seal with: made of the nodes' secret, which no rank knows."""
    return _hmac(secret, "ranks", job_id.encode(), str(attempt).encode(), salt)


def _derived(secret: bytes, label: str, of_head: bytes, of_node: bytes, name: bytes = b"") -> bytes:
    return _hmac(secret, label, VERSION.to_bytes(2, "big"), of_head, of_node, name)


def _hmac(secret: bytes, label: str, *parts: bytes) -> bytes:
    """Of the parts, each with its length before it: no two lists of them are one text."""
    made = hmac.new(secret, digestmod="sha256")
    for part in (b"xla-run", label.encode(), *parts):
        made.update(len(part).to_bytes(4, "big") + part)
    return made.digest()


def _mark(key: bytes, count: int, data: bytes | memoryview) -> bytes:
    if len(data) <= _SMALL_BYTES:
        return hmac.digest(key, _COUNTED.pack(count, len(data)) + data, "sha256")
    made = hmac.new(key, _COUNTED.pack(count, len(data)), "sha256")
    made.update(data)
    return made.digest()


def _greeting(sock: socket.socket, end_s: float) -> bytes:
    """The nonce of a greeting; who begins otherwise is not read further."""
    magic = _exactly(sock, len(_MAGIC), end_s)
    if magic != _MAGIC:
        raise HostError(f"it is no xla-run: it says {magic!r}")
    _, version, nonce = _HELLO.unpack(magic + _exactly(sock, _HELLO.size - len(magic), end_s))
    if version != VERSION:
        raise PreflightError(
            f"it speaks version {version} of the protocol between nodes, and here is version "
            f"{VERSION}; install the same torch-xdist on all nodes"
        )
    return bytes(nonce)


def _send(sock: socket.socket, data: bytes, end_s: float) -> None:
    sock.settimeout(max(0.01, end_s - time.monotonic()))
    try:
        sock.sendall(data)
    except OSError as error:
        raise HostError(f"it has hung up ({error.strerror or error})") from None


def _exactly(sock: socket.socket, size: int, end_s: float) -> bytes:
    """So many bytes, all of them before the time is over; a stranger keeps nobody waiting."""
    data = b""
    while len(data) < size:
        sock.settimeout(max(0.01, end_s - time.monotonic()))
        try:
            more = sock.recv(size - len(data))
        except TimeoutError:
            raise HostError("it says nothing, or not enough") from None
        except OSError as error:
            raise HostError(f"it has hung up ({error.strerror or error})") from None
        if not more:
            raise HostError("it has hung up")
        data += more
        if time.monotonic() > end_s:
            raise HostError("it says nothing, or not enough")
    return data
