"""Messages between our processes: a JSON object and, with it, any number of bytes.

A frame is two 32-bit lengths, the JSON text, the bytes. The bytes (a pickled function, a result)
are only carried here; who holds them decides whether to open them.
"""

import json
import socket
import struct
import threading
from collections.abc import Iterator, Mapping
from typing import Any

from torch_xdist.launcher.errors import ProtocolError

Message = dict[str, Any]
_LENGTHS = struct.Struct("!II")
_MOST_JSON_BYTES = 64 << 20


def encode(message: Mapping[str, Any], blob: bytes = b"") -> bytes:
    """One frame."""
    text = json.dumps(message).encode()
    return b"".join((_LENGTHS.pack(len(text), len(blob)), text, blob))


def decode(frame: bytes) -> tuple[Message, bytes]:
    """The message and the bytes of exactly one frame.

    Raises:
        ProtocolError: it is no such frame.
    """
    frames = list(Decoder().feed(frame))
    if len(frames) != 1:
        raise ProtocolError(f"frame: {len(frame)} bytes hold {len(frames)} messages; 1 is needed")
    return frames[0]


class Decoder:
    """Cuts a stream of bytes into frames, however the stream is chopped."""

    def __init__(self) -> None:
        self._pending = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[Message, bytes]]:
        """Yield every frame that `data` completes.

        Raises:
            ProtocolError: the JSON part is none, or no object, or beyond 64 MiB.
        """
        self._pending += data
        while len(self._pending) >= _LENGTHS.size:
            text_bytes, blob_bytes = _LENGTHS.unpack_from(self._pending)
            if text_bytes > _MOST_JSON_BYTES:
                raise ProtocolError(
                    f"frame: a JSON part of {text_bytes} bytes; at most {_MOST_JSON_BYTES} are read"
                )
            start, end = _LENGTHS.size + text_bytes, _LENGTHS.size + text_bytes + blob_bytes
            if len(self._pending) < end:
                return
            text = bytes(self._pending[_LENGTHS.size : start])
            blob = bytes(self._pending[start:end])
            del self._pending[:end]
            yield _object(text), blob


class Link:
    """A stream socket that carries frames. `send` may be called from several threads."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._decoder = Decoder()
        self._lock = threading.Lock()
        self._ready: list[tuple[Message, bytes]] = []

    def fileno(self) -> int:
        return self.sock.fileno()

    def send(self, message: Mapping[str, Any], blob: bytes = b"") -> bool:
        """Send one frame; False where the other side is gone."""
        try:
            with self._lock:
                self.sock.sendall(encode(message, blob))
        except OSError:
            return False
        return True

    def receive(self) -> tuple[Message, bytes] | None:
        """Wait for one frame; None at the end of the stream.

        Raises:
            TimeoutError: the socket has a timeout, and it passed.
        """
        while not self._ready:
            data = self.sock.recv(1 << 20)
            if not data:
                return None
            self._ready += self._decoder.feed(data)
        return self._ready.pop(0)

    def read_ready(self) -> tuple[list[tuple[Message, bytes]], bool]:
        """After a selector said "readable": the complete frames, and whether it is open."""
        try:
            data = self.sock.recv(1 << 20)
        except (BlockingIOError, InterruptedError):
            return [], True
        except OSError:
            return [], False
        return list(self._decoder.feed(data)), bool(data)

    def close(self) -> None:
        self.sock.close()


def _object(text: bytes) -> Message:
    try:
        message = json.loads(text)
    except ValueError as error:
        raise ProtocolError(f"frame: {text[:60]!r} is no JSON: {error}") from error
    if not isinstance(message, dict):
        raise ProtocolError(f"frame: {text[:60]!r} is no JSON object")
    return message
