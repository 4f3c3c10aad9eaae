"""Messages between our processes: a JSON object and, with it, byte strings and descriptors.

A frame is a head (bytes of JSON, number of byte strings, number of descriptors), the size of each
byte string as 64 bits, the JSON, the byte strings. Every size is compared with what the reader
allows before anything is allocated, and memory grows only as bytes arrive. Descriptors travel with
the head, over Unix sockets, and arrive closed on exec. The byte strings (a pickled function, a
tensor) are only carried here; who holds them decides whether to open them, and `unseal` tells
whether they come from this job.

The launcher sends frames over sockets, pipes and gRPC, the collectives between the ranks of a host.
"""

import array
import hmac
import json
import os
import socket
import struct
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from torch_xdist.system.errors import FrameError, SealError

Message = dict[str, Any]
_HEAD = struct.Struct("!IHH")
_SIZE = struct.Struct("!Q")
_DESCRIPTOR = array.array("i")
_SEAL_BYTES = 32
_CHUNK_BYTES = 1 << 20
_MOST_BUFFERS = 512  # of one sendmsg; the kernel takes 1024
_MOST_DESCRIPTORS = 250  # of one message; the kernel takes 253
MOST_JSON_BYTES = 64 << 20
# More than any host's memory holds: a size beyond it is no size.
MOST_BLOB_BYTES = 1 << 44


class Frame(NamedTuple):
    """One message: a JSON object, its byte strings, its descriptors (the receiver's to close)."""

    message: Message
    blobs: tuple[bytes, ...] = ()
    descriptors: tuple[int, ...] = ()

    @property
    def blob(self) -> bytes:
        """The only byte string; b"" where there is none."""
        return self.blobs[0] if self.blobs else b""


def encode(message: Mapping[str, Any], *blobs: bytes) -> bytes:
    """One frame as bytes."""
    return b"".join(_parts(message, blobs, 0))


def encoded_parts(message: Mapping[str, Any], *blobs: bytes) -> list[bytes]:
    """The same, not joined: the byte strings are those that are given, and not copied."""
    return _parts(message, blobs, 0)


def decode(
    data: bytes, most_json: int = MOST_JSON_BYTES, most_blobs: int = MOST_BLOB_BYTES
) -> Frame:
    """Exactly one frame.

    Raises:
        FrameError: it is no such frame, or larger than allowed.
    """
    found = list(Decoder(most_json, most_blobs).feed(data))
    if len(found) != 1:
        raise FrameError(f"frame: {len(data)} bytes hold {len(found)} messages; 1 is needed")
    return found[0]


def _parts(message: Mapping[str, Any], blobs: Sequence[bytes], descriptors: int) -> list[bytes]:
    text = json.dumps(message).encode()
    if len(text) > MOST_JSON_BYTES:
        raise FrameError(
            f"frame: a JSON part of {len(text)} bytes; at most {MOST_JSON_BYTES} are sent; what is "
            "larger goes as a byte string or a memory file"
        )
    head = _HEAD.pack(len(text), len(blobs), descriptors)
    return [head + b"".join(_SIZE.pack(len(blob)) for blob in blobs) + text, *blobs]


class Decoder:
    """Cuts a stream of bytes into frames, however the stream is chopped.

    Args:
        most_json, most_blobs: bytes of the JSON part, and of all byte strings of one frame, that
            are read at most; a stranger gets little.
    """

    def __init__(self, most_json: int = MOST_JSON_BYTES, most_blobs: int = MOST_BLOB_BYTES) -> None:
        self._most_json, self._most_blobs = most_json, most_blobs
        self._pending = bytearray()
        self._wanted_bytes = _HEAD.size

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Yield every frame that `data` completes; `descriptors` are placeholders, one -1 each.

        Raises:
            FrameError: the JSON part is no object, or a part is larger than allowed.
        """
        self._pending += data
        while len(self._pending) >= self._wanted_bytes:
            text_bytes, blobs, descriptors = _HEAD.unpack_from(self._pending)
            self._check("JSON part", text_bytes, self._most_json)
            start = _HEAD.size + blobs * _SIZE.size
            if len(self._pending) < start:
                self._wanted_bytes = start
                return
            sizes = struct.unpack_from(f"!{blobs}Q", self._pending, _HEAD.size)
            self._check("byte strings", sum(sizes), self._most_blobs)
            self._wanted_bytes = start + text_bytes + sum(sizes)
            if len(self._pending) < self._wanted_bytes:
                return
            message = _object(bytes(self._pending[start : start + text_bytes]))
            found = tuple(self._slices(start + text_bytes, sizes))
            del self._pending[: self._wanted_bytes]
            self._wanted_bytes = _HEAD.size
            yield Frame(message, found, (-1,) * descriptors)

    def _slices(self, start: int, sizes: Sequence[int]) -> Iterator[bytes]:
        with memoryview(self._pending) as view:
            for size in sizes:
                yield view[start : start + size].tobytes()
                start += size

    @staticmethod
    def _check(what: str, size: int, most: int) -> None:
        if size > most:
            raise FrameError(f"frame: {what} of {size} bytes; at most {most} are read here")


class Link:
    """A stream socket that carries frames. `send` may be called from several threads.

    Args:
        most_json, most_blobs: as of `Decoder`.
    """

    def __init__(
        self,
        sock: socket.socket,
        most_json: int = MOST_JSON_BYTES,
        most_blobs: int = MOST_BLOB_BYTES,
    ) -> None:
        self.sock = sock
        self._decoder = Decoder(most_json, most_blobs)
        self._lock = threading.Lock()
        self._ready: deque[Frame] = deque()
        self._arrived: deque[int] = deque()
        self._passes_descriptors = sock.family == socket.AF_UNIX

    def fileno(self) -> int:
        return self.sock.fileno()

    def send(
        self, message: Mapping[str, Any], *blobs: bytes, descriptors: Sequence[int] = ()
    ) -> bool:
        """Send one frame; False where the other side is gone. The descriptors stay the caller's.

        Raises:
            FrameError: a JSON part beyond 64 MiB, or more than 250 descriptors.
        """
        if len(descriptors) > _MOST_DESCRIPTORS:
            raise FrameError(
                f"frame: {len(descriptors)} descriptors; the kernel passes {_MOST_DESCRIPTORS} at "
                "once; send them in several frames"
            )
        parts = _parts(message, blobs, len(descriptors))
        try:
            with self._lock:
                self._send_all(parts, descriptors)
        except OSError:
            return False
        return True

    def _send_all(self, parts: Sequence[bytes], descriptors: Sequence[int]) -> None:
        views = deque(memoryview(part) for part in parts if part)
        if descriptors:
            # They travel with the first byte; the rest may go in pieces.
            views[0] = views[0][socket.send_fds(self.sock, [views[0]], list(descriptors)) :]
        while views:
            sent = self.sock.sendmsg(list(islice(views, _MOST_BUFFERS)))
            while views and sent >= len(views[0]):
                sent -= len(views.popleft())
            if sent:
                views[0] = views[0][sent:]

    def receive(self) -> Frame | None:
        """Wait for one frame; None at the end of the stream.

        Raises:
            TimeoutError: the socket has a timeout, and it passed.
            FrameError: what comes is no frame, or larger than allowed.
        """
        while not self._ready:
            if not self._take(self._read()):
                return None
        return self._ready.popleft()

    def read_ready(self) -> tuple[list[Frame], bool]:
        """The complete frames that are here, and whether it is open; never waits.

        A selector says when more bytes have come, but nothing of a frame that `receive` has read
        together with an earlier one.
        """
        try:
            is_open = self._take(self._read(socket.MSG_DONTWAIT))
        except (BlockingIOError, InterruptedError):
            is_open = True
        except OSError:
            is_open = False
        found = list(self._ready)
        self._ready.clear()
        return found, is_open

    def is_readable(self) -> bool:
        """Whether there is something to read, the end of the stream included."""
        try:
            self.sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except OSError:
            return False
        return True

    def _read(self, flags: int = 0) -> bytes:
        if not self._passes_descriptors:
            return self.sock.recv(_CHUNK_BYTES, flags)
        # Python 3.11's socket.recv_fds drops the flags it is given.
        room = socket.CMSG_LEN(_MOST_DESCRIPTORS * _DESCRIPTOR.itemsize)
        data, control, told, _ = self.sock.recvmsg(
            _CHUNK_BYTES, room, flags | socket.MSG_CMSG_CLOEXEC
        )
        for level, kind, packed in control:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                whole = len(packed) - len(packed) % _DESCRIPTOR.itemsize
                self._arrived += array.array("i", packed[:whole])
        if told & socket.MSG_CTRUNC:
            self._drop()
            raise FrameError(
                "frame: descriptors were lost on their way; this process has too many files open; "
                "raise the limit (ulimit -n)"
            )
        return data

    def _take(self, data: bytes) -> bool:
        for frame in self._decoder.feed(data):
            count = len(frame.descriptors)
            if count > len(self._arrived):
                self._drop()
                raise FrameError(
                    f"frame: {count} descriptors are announced, and {len(self._arrived)} came"
                )
            own = tuple(self._arrived.popleft() for _ in range(count))
            self._ready.append(frame._replace(descriptors=own))
        return bool(data)

    def _drop(self) -> None:
        for fd in self._arrived:
            os.close(fd)
        self._arrived.clear()

    def close(self) -> None:
        """Close the socket, and descriptors that nobody has taken."""
        self._drop()
        for frame in self._ready:
            for fd in frame.descriptors:
                os.close(fd)
        self._ready.clear()
        self.sock.close()


def to_memory_file(data: bytes, name: str = "torch-xdist") -> int:
    """A descriptor of a file in memory that holds `data`; the caller closes it.

    For what is too large for the buffer of a socket that nobody reads yet.
    """
    fd = os.memfd_create(name, os.MFD_CLOEXEC)
    write_all(fd, data)
    return fd


def write_all(fd: int, data: bytes) -> None:
    """Write to a descriptor that waits, which takes a part at a time.

    Raises:
        OSError: nobody reads it any more, or there is no room.
    """
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def from_memory_file(fd: int) -> bytes:
    """All bytes of a memory file, from any process that has it; one read gives at most 2 GiB."""
    pieces, at = [], 0
    while piece := os.pread(fd, 1 << 30, at):
        pieces.append(piece)
        at += len(piece)
    return b"".join(pieces)


def seal(secret: bytes, context: str, payload: bytes) -> bytes:
    """The payload behind an HMAC-SHA256 of it and of `context` (the place it is written to).

    Raises:
        SealError: there is no secret; see `Rank.secret`.
    """
    return _mark(secret, context, payload) + payload


def unseal(secret: bytes, context: str, sealed: bytes) -> bytes:
    """The payload that a process of the same job has sealed for the same `context`.

    Raises:
        SealError: somebody else wrote it, or it was meant for another place.
    """
    mark, payload = sealed[:_SEAL_BYTES], sealed[_SEAL_BYTES:]
    if not hmac.compare_digest(mark, _mark(secret, context, payload)):
        raise SealError(
            f"{context}: {len(sealed)} bytes without the seal of this job; somebody else has "
            "written there, or the ranks do not have the same XLA_RUN_SECRET"
        )
    return payload


def _mark(secret: bytes, context: str, payload: bytes) -> bytes:
    if not secret:
        raise SealError(
            f"{context}: this process has no job secret to seal with; start it with xla-run or "
            "spawn, or set XLA_RUN_SECRET to the same random hexadecimal digits on all ranks"
        )
    name = context.encode()
    made = hmac.new(secret, _SIZE.pack(len(name)) + name, "sha256")
    made.update(payload)
    return made.digest()


def _object(text: bytes) -> Message:
    try:
        message = json.loads(text)
    except ValueError as error:
        raise FrameError(f"frame: {text[:60]!r} is no JSON: {error}") from error
    if not isinstance(message, dict):
        raise FrameError(f"frame: {text[:60]!r} is no JSON object")
    return message
