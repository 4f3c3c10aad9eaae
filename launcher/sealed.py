"""A TCP connection between two processes that know one secret: each proves it, then seals.

The side that listens (the head) greets with a nonce; where it has a key pair, all that follows is
inside TLS (`tls`). The other one (a node) answers with a nonce of its own and a proof, and only
then the head gives its proof and the job's name. A proof is the HMAC-SHA256, under the secret, of
who gives it, the version of this protocol, both nonces and the head's certificate: it is good for
this connection and this direction alone, and the secret itself is never sent. Whoever puts himself
between, or says for the head that it has no key pair, makes both proofs wrong. Everything before
the proofs has a small size, and nothing of it is parsed here but a magic word, a version and a
name.

A head without a key pair seals records from then on: a length, an HMAC-SHA256 of a counter, the
length and the bytes, and the bytes. The two directions have keys of their own, made of the secret
and both nonces. Such records are authenticated, not encrypted. In both forms one that was altered,
left out, repeated or moved ends the connection, before anything in it is read.
"""

import contextlib
import hmac
import os
import socket
import struct
import time
from dataclasses import dataclass

from torch_xdist.launcher import tls
from torch_xdist.launcher.facts.errors import AuthError, HostError, PreflightError
from torch_xdist.launcher.tls import KeyPair, Tls
from torch_xdist.system.errors import FrameError

VERSION = 2
LEAST_SECRET_BYTES = 16
_MAGIC = b"xla-run nodes\r\n\0"
# The word, 1 for TLS, the version, the nonce.
_HELLO = struct.Struct("!16sBB32s")
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
    opener: Opener | Tls
    sealer: Sealer | Tls


def as_head(
    sock: socket.socket, secret: bytes, job_id: str, limit_s: float, pair: KeyPair | None = None
) -> Sealed:
    """The head's part, with whoever has connected.

    Args:
        pair: under which all is encrypted; None: it is authenticated alone.

    Raises:
        AuthError: it does not know the secret.
        HostError: it is no node, or took longer than the limit.
        PreflightError: it speaks another version of this.
    """
    wire = _Wire(sock, limit_s)
    ours = os.urandom(_NONCE_BYTES)
    wire.send(_HELLO.pack(_MAGIC, pair is not None, VERSION, ours))
    if pair is not None:
        wire.encrypt(pair.accepting())
    _, theirs = wire.greeting()
    facts = (ours, theirs, pair.digest if pair else b"")
    if not hmac.compare_digest(wire.exactly(_PROOF_BYTES), _derived(secret, "node", *facts)):
        with contextlib.suppress(HostError):
            wire.send(_NO)
        raise AuthError("it does not know the secret of this job (XLA_RUN_SECRET)")
    name = job_id.encode()
    answer = _YES + bytes([len(name)]) + name
    wire.send(answer + _derived(secret, "head", *facts, name))
    if wire.tls is not None:
        return Sealed(job_id, wire.tls, wire.tls)
    to_head, to_node = _keys(secret, *facts, name)
    return Sealed(job_id, Opener(to_head), Sealer(to_node))


def as_node(sock: socket.socket, secret: bytes, limit_s: float) -> Sealed:
    """A node's part, with whoever listens there.

    Raises:
        AuthError: the head does not take our proof, or has none itself.
        HostError: it is no head, or took longer than the limit.
        PreflightError: it speaks another version of this.
    """
    wire = _Wire(sock, limit_s)
    is_encrypted, theirs = wire.greeting()
    if is_encrypted:
        wire.encrypt(tls.connecting())
    ours = os.urandom(_NONCE_BYTES)
    facts = (theirs, ours, wire.tls.seen() if wire.tls else b"")
    hello = _HELLO.pack(_MAGIC, is_encrypted, VERSION, ours)
    wire.send(hello + _derived(secret, "node", *facts))
    if wire.exactly(1) != _YES:
        raise AuthError(
            "it refuses this node: XLA_RUN_SECRET is another one there; set the same on all nodes"
        )
    name = wire.exactly(wire.exactly(1)[0])
    if not hmac.compare_digest(wire.exactly(_PROOF_BYTES), _derived(secret, "head", *facts, name)):
        raise AuthError(
            "it does not know the secret of this job, so it is not node 0 of it; see what listens "
            "there, and set the same XLA_RUN_SECRET on all nodes"
        )
    job_id = name.decode("ascii", "replace")
    if wire.tls is not None:
        return Sealed(job_id, wire.tls, wire.tls)
    to_head, to_node = _keys(secret, *facts, name)
    return Sealed(job_id, Opener(to_node), Sealer(to_head))


def _keys(secret: bytes, *facts: bytes) -> tuple[bytes, bytes]:
    """Of the records to the head, and of those to the node, where nothing is encrypted."""
    return _derived(secret, "from node", *facts), _derived(secret, "from head", *facts)


def rank_secret(secret: bytes, job_id: str, attempt: int, salt: bytes) -> bytes:
    """What the ranks of an attempt seal with: made of the nodes' secret, which no rank knows."""
    return _hmac(secret, "ranks", job_id.encode(), str(attempt).encode(), salt)


def _derived(
    secret: bytes,
    label: str,
    of_head: bytes,
    of_node: bytes,
    certificate: bytes,
    name: bytes = b"",
) -> bytes:
    version = VERSION.to_bytes(2, "big")
    return _hmac(secret, label, version, of_head, of_node, certificate, name)


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


class _Wire:
    """A socket until both sides have proven the secret: a stranger keeps nobody waiting.

    It reads no byte more than it is asked for, or than are in the record of TLS that has them: what
    comes later belongs to whoever gets the socket.
    """

    def __init__(self, sock: socket.socket, limit_s: float) -> None:
        self._sock, self._end_s = sock, time.monotonic() + limit_s
        self._opened = b""
        self.tls: Tls | None = None

    def encrypt(self, end: Tls) -> None:
        """Shake hands; all that follows is inside."""
        self.send(end.shaken())
        while not end.is_shaken:
            self.send(end.shaken(self._record()))
        self.tls = end

    def send(self, data: bytes) -> None:
        """All of it, or a HostError."""
        self._sock.settimeout(max(0.01, self._end_s - time.monotonic()))
        try:
            self._sock.sendall(self.tls.sealed(data) if self.tls else data)
        except OSError as error:
            raise HostError(f"it has hung up ({error.strerror or error})") from None

    def exactly(self, size: int) -> bytes:
        """So many bytes, all of them before the time is over."""
        if self.tls is None:
            return self._read(size)
        while len(self._opened) < size:
            try:
                self._opened += self.tls.opened(self._record())
            except FrameError as error:
                raise HostError(f"it says {error}") from None
        found, self._opened = self._opened[:size], self._opened[size:]
        return found

    def greeting(self) -> tuple[bool, bytes]:
        """Whether all that follows is encrypted, and the nonce; of others no more is read."""
        magic = self.exactly(len(_MAGIC))
        if magic != _MAGIC:
            raise HostError(f"it is no xla-run: it says {magic!r}")
        rest = self.exactly(_HELLO.size - len(magic))
        _, is_encrypted, version, nonce = _HELLO.unpack(magic + rest)
        if version != VERSION:
            raise PreflightError(
                f"it speaks version {version} of the protocol between nodes, and here is version "
                f"{VERSION}; install the same torch-xdist on all nodes"
            )
        return bool(is_encrypted), bytes(nonce)

    def _record(self) -> bytes:
        """The next record of TLS, closed."""
        head = self._read(tls.HEAD_BYTES)
        return head + self._read(tls.bytes_after(head))

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            self._sock.settimeout(max(0.01, self._end_s - time.monotonic()))
            try:
                more = self._sock.recv(size - len(data))
            except TimeoutError:
                raise HostError("it says nothing, or not enough") from None
            except OSError as error:
                raise HostError(f"it has hung up ({error.strerror or error})") from None
            if not more:
                raise HostError("it has hung up")
            data += more
            if time.monotonic() > self._end_s:
                raise HostError("it says nothing, or not enough")
        return data
