"""Reading along on the wire, as anybody with the right to can."""

import contextlib
import socket
import threading
from collections.abc import Iterator

_EVERY_PROTOCOL = 3


@contextlib.contextmanager
def sniffed() -> Iterator[list[bytes]]:
    """All packets of this machine to itself, where the nodes of a test are."""
    packets: list[bytes] = []
    kind = socket.htons(_EVERY_PROTOCOL)
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, kind) as sock:
        sock.bind(("lo", 0))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 20)
        sock.settimeout(0.2)
        is_over = threading.Event()

        def listen() -> None:
            while not is_over.is_set():
                with contextlib.suppress(TimeoutError):
                    packets.append(sock.recv(1 << 17))

        thread = threading.Thread(target=listen)
        thread.start()
        try:
            yield packets
        finally:
            is_over.set()
            thread.join()
