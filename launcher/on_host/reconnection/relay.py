"""What a new ssh starts on a host whose agent has lost its connection: the way from its stdin and
stdout to that agent.

It understands nothing of what it passes on. The agent listens at a name of Linux's own (no file,
so none is left), which is no secret; here and there it is looked whether the other side is the same
user's, and the head proves itself to the agent before that tells it anything.
"""

import contextlib
import os
import select
import socket
import sys

from torch_xdist.launcher.connection import MARK
from torch_xdist.system import frames
from torch_xdist.system.process import credentials

_BYTES = 1 << 18
_OUT, _IN = 1, 0


def main() -> None:
    """`python -m torch_xdist.launcher.on_host.reconnection.relay NAME`."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    why = ""
    try:
        sock.connect(f"\0{sys.argv[1]}")
        if credentials(sock)[1] != os.getuid():
            why = "another user listens where its agent did"
    except OSError as error:
        why = f"its agent is not there any more ({(error.strerror or str(error)).lower()})"
    told = frames.encode({"op": "refused", "text": why}) if why else b""
    with contextlib.suppress(OSError):
        os.write(_OUT, MARK + told)
        if not why:
            _Relay(sock).run()


class _Relay:
    """Passes on both ways, until one side ends; whoever does not read holds up its own way alone.

    Args:
        sock: to the agent.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock.fileno()
        self._to = {_IN: self._sock, self._sock: _OUT}
        self._waiting = {self._sock: b"", _OUT: b""}
        for fd in (_IN, _OUT, self._sock):
            os.set_blocking(fd, False)

    def run(self) -> None:
        """Raises OSError where one side does not read any more."""
        while True:
            ready = dict(self._poll())
            # The agent has given this connection up, or has ended.
            if ready.get(self._sock, 0) & (select.POLLHUP | select.POLLERR):
                self._pass_on(self._sock)
                return
            for fd in (_IN, self._sock):
                if fd in ready and not self._waiting[self._to[fd]] and not self._pass_on(fd):
                    return
            for fd in (_OUT, self._sock):
                self._flush(fd)

    def _poll(self) -> list[tuple[int, int]]:
        poll = select.poll()
        wanted = {_IN: 0, _OUT: 0, self._sock: 0}
        for source, sink in self._to.items():
            if self._waiting[sink]:
                wanted[sink] |= select.POLLOUT
            else:
                wanted[source] |= select.POLLIN
        for fd, events in wanted.items():
            poll.register(fd, events)
        return poll.poll()

    def _pass_on(self, source: int) -> bool:
        """False at the end of a side."""
        try:
            data = os.read(source, _BYTES)
        except BlockingIOError:
            return True
        sink = self._to[source]
        self._waiting[sink] += data
        self._flush(sink)
        return bool(data)

    def _flush(self, sink: int) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._waiting[sink]:
                self._waiting[sink] = self._waiting[sink][os.write(sink, self._waiting[sink]) :]


if __name__ == "__main__":
    main()
