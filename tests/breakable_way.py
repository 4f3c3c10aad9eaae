"""A way between two ends on this machine that tests can break: it passes on TCP connections."""

import contextlib
import socket
import struct
import threading
from types import TracebackType

_NO_LINGER = struct.pack("ii", 1, 0)


class Way:
    """Leads to a port of this machine.

    Args:
        port: where it leads.
    """

    def __init__(self, port: int) -> None:
        self._to = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        """Where it begins."""
        self.made = 0
        """How many connections there were."""
        self.passed = bytearray()
        """All that went over it."""
        self._lock = threading.Lock()
        self._socks: list[socket.socket] = []
        self._is_open = threading.Event()
        self._is_open.set()
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> "Way":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._listener.close()
        self._is_open.set()
        self.break_all()

    def break_all(self, *, in_order: bool = False) -> None:
        """End all connections, by a reset at both ends or in order."""
        with self._lock:
            socks, self._socks = self._socks, []
        for sock in socks:
            with contextlib.suppress(OSError):
                if not in_order:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
                sock.shutdown(socket.SHUT_RD if not in_order else socket.SHUT_RDWR)
            sock.close()

    def close(self) -> None:
        """Nothing gets through, though connections stay, and new ones are taken."""
        self._is_open.clear()

    def open(self) -> None:
        """The end of `close`."""
        self._is_open.set()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            self.made += 1
            self._is_open.wait()
            try:
                far = socket.create_connection(("127.0.0.1", self._to))
            except OSError:
                near.close()
                continue
            with self._lock:
                self._socks += [near, far]
            for ends in ((near, far), (far, near)):
                threading.Thread(target=self._pass_on, args=ends, daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                self._is_open.wait()
                self.passed += data
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
