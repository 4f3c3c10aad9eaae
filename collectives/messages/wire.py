"""How messages travel on a local socket: a length, then a JSON head, then lengths and blobs."""

import json
import socket
import struct
from typing import Any

_LENGTHS = struct.Struct("=II")
_LENGTH = struct.Struct("=Q")


def send(peer: socket.socket, head: Any, blobs: list[bytes]) -> None:
    """Send a JSON value and byte strings."""
    text = json.dumps(head).encode()
    sizes = b"".join(_LENGTH.pack(len(blob)) for blob in blobs)
    peer.sendall(_LENGTHS.pack(len(text), len(blobs)) + text + sizes + b"".join(blobs))


def receive(peer: socket.socket) -> tuple[Any, list[bytes]]:
    """What `send` sent. Raises ConnectionError where it ends early."""
    length, count = _LENGTHS.unpack(_exactly(peer, _LENGTHS.size))
    head = json.loads(_exactly(peer, length))
    sizes = [_LENGTH.unpack(_exactly(peer, _LENGTH.size))[0] for _ in range(count)]
    return head, [_exactly(peer, size) for size in sizes]


def _exactly(peer: socket.socket, length: int) -> bytes:
    data = bytearray()
    while len(data) < length:
        piece = peer.recv(min(length - len(data), 2**20))
        if not piece:
            raise ConnectionResetError("the other end of a local socket closed it")
        data += piece
    return bytes(data)
