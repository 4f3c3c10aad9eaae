"""The server of one rank: it answers the other ranks, over an abstract Unix socket or over TCP.

One thread reads all connections, so a request costs no thread and one that waits (a rendezvous)
holds none. A connection carries one request, after the handshake. Nothing that a peer does, and no
lack of descriptors or memory, ends the thread: a rank without a server would leave the others in
their calls. Abstract sockets have no name in a file system, so nothing is left after a SIGKILL.

In: requests by kind. Out: for each, what its handler answers, at once or later; where it wants to
know, the end of the connection, by which the kernel tells of the end of the process that asked.
"""

import atexit
import contextlib
import os
import selectors
import socket
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping

from torch_xdist.collectives.errors import CollectiveError
from torch_xdist.collectives.messages.handshake import ServerHandshake
from torch_xdist.collectives.workers import Workers
from torch_xdist.system.frames import Frame, Link, Message

_TICK_S = 0.25
BACKLOG = 4096  # as many ranks may come at once; the kernel's own limit holds too
_BREAK_S = 0.05  # between two tries where the kernel has no descriptor for a connection
_SILENT_S = 60.0  # between two lines about the same trouble
_HANDSHAKE_S = 30.0  # a connection that has not proved itself by then is closed
_SMALL_BYTES = 2**16  # fits into the empty buffer of a socket, whether or not the peer reads
_FLUSH_S = 10.0
_NO_ANSWER = "could not answer a request"

_servers: "weakref.WeakSet[Server]" = weakref.WeakSet()


class Request:
    """What one rank asks; `answer` may be called later, from any thread, once.

    Attributes:
        message: its JSON object, without its kind.
        payload: its byte string.
        descriptors: those that came with it; the handler's to close.
    """

    def __init__(
        self,
        frame: Frame,
        connection: "_Connection",
        answers: Workers,
        say: Callable[[str, Exception], None],
    ) -> None:
        self.message = frame.message
        self.payload = frame.blob
        self.descriptors = frame.descriptors
        self._link, self._answers, self._say = connection.link, answers, say
        self._at_end = connection.at_end

    def wait(self) -> None:
        """Tell the rank that its request is here, and that the answer may take any time."""
        self._link.send({"waits": True})

    def at_end(self, function: Callable[[], None]) -> None:
        """Call the function when the connection has ended: with the process that asked, at last."""
        self._at_end.append(function)

    def answer(
        self, message: Message | None = None, *blobs: bytes, descriptors: tuple[int, ...] = ()
    ) -> None:
        """Send the answer; a rank that is gone meanwhile is no error.

        Where no thread can be started to send it, the rank finds its connection closed.
        """

        def send() -> None:
            self._link.send(message or {}, *blobs, descriptors=descriptors)

        if sum(map(len, blobs)) <= _SMALL_BYTES:
            send()
        else:
            # It may wait for the peer to read, and nobody may wait for that.
            try:
                self._answers.run(send)
            except RuntimeError as error:
                self._say(_NO_ANSWER, error)
                with contextlib.suppress(OSError):
                    self._link.sock.shutdown(socket.SHUT_RDWR)


Handler = Callable[[Request], None]


class _Connection:
    def __init__(self, sock: socket.socket, address: str, secret: bytes) -> None:
        self.sock = sock
        self.handshake: ServerHandshake | None = ServerHandshake(sock, address, secret)
        self.link = Link(sock)
        self.at_end: list[Callable[[], None]] = []
        self.since_s = time.monotonic()


class Server:
    """Answers requests.

    Args:
        address: of the abstract socket, see `peers.address_of`; what the proofs of the handshake
            are for.
        secret: the job's.
        handlers: by kind of request.
        tick: called a few times a second.
        listener: a TCP socket that listens, instead of the abstract one.

    Raises:
        OSError: somebody else listens there.
    """

    def __init__(
        self,
        address: str,
        secret: bytes,
        handlers: Mapping[str, Handler],
        tick: Callable[[], None] = lambda: None,
        listener: socket.socket | None = None,
    ) -> None:
        self._address, self._secret = address, secret
        self._handlers, self._tick = handlers, tick
        self._answers = Workers("xdist-answer")
        self._said_s: dict[str, float] = {}
        self._connections: dict[int, _Connection] = {}
        self._accepts_s = 0.0  # not before
        self._listener = listener or _listening(address)
        self._listener.setblocking(False)
        self._selector = selectors.DefaultSelector()
        _servers.add(self)
        atexit.register(self._flush)
        threading.Thread(target=self._serve, name="xdist-server", daemon=True).start()

    def _serve(self) -> None:
        ticked_s = 0.0
        while True:
            try:
                self._listen()
                for key, _ in self._selector.select(_TICK_S):
                    if key.data is None:
                        self._accept()
                    else:
                        self._read(key.data)
                if time.monotonic() - ticked_s > _TICK_S:
                    ticked_s = time.monotonic()
                    self._end_silent_ones(ticked_s)
                    self._tick()
            except Exception as error:
                # Whatever it is (no memory, say): who is served next must not find nobody.
                self._say("was interrupted", error)
                time.sleep(_BREAK_S)

    def _listen(self) -> None:
        """Wait for connections, except in a short break after one could not be taken."""
        wanted = time.monotonic() >= self._accepts_s
        if wanted != (self._listener in self._selector.get_map()):
            if wanted:
                self._selector.register(self._listener, selectors.EVENT_READ)
            else:
                self._selector.unregister(self._listener)

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError, InterruptedError):
            return
        except OSError as error:
            self._accepts_s = time.monotonic() + _BREAK_S
            self._say("has no room for a connection of another rank", error)
            return
        try:
            # Strangers are not told of: anybody on the host may connect.
            connection = _Connection(sock, self._address, self._secret)
            self._selector.register(sock, selectors.EVENT_READ, connection)
        except (OSError, CollectiveError):
            sock.close()
            return
        self._connections[sock.fileno()] = connection

    def _read(self, connection: _Connection) -> None:
        if connection.handshake is not None:
            proved = connection.handshake.read_ready()
            if proved:
                connection.handshake = None
            elif proved is False:
                self._end(connection)
            return
        try:
            frames, is_open = connection.link.read_ready()
            for frame in frames:
                self._handle(Request(frame, connection, self._answers, self._say))
        except Exception as error:
            self._say(_NO_ANSWER, error)
            is_open = False
        if not is_open:
            self._end(connection)

    def _handle(self, request: Request) -> None:
        self._handlers[request.message.pop("kind")](request)

    def _end(self, connection: _Connection) -> None:
        self._connections.pop(connection.sock.fileno(), None)
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(connection.sock)
        connection.link.close()
        for function in connection.at_end:
            function()

    def _end_silent_ones(self, now_s: float) -> None:
        for connection in list(self._connections.values()):
            if connection.handshake is not None and now_s - connection.since_s > _HANDSHAKE_S:
                self._end(connection)

    def _say(self, what: str, error: Exception) -> None:
        if time.monotonic() - self._said_s.get(what, -_SILENT_S) >= _SILENT_S:
            self._said_s[what] = time.monotonic()
            print(
                f"torch-xdist: the server of this rank (pid {os.getpid()}) {what}: {error!r}",
                file=sys.stderr,
                flush=True,
            )

    def _flush(self) -> None:
        """At the end of the process: let the answers that others wait for go out first."""
        self._answers.wait(_FLUSH_S)

    def close_in_child(self) -> None:
        """In a forked process: a DataLoader worker must not keep the socket of a rank that died."""
        self._listener.close()
        self._selector.close()
        for connection in self._connections.values():
            connection.sock.close()


def _listening(address: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.bind(address)
        sock.listen(BACKLOG)
    except OSError:
        sock.close()
        raise
    return sock


def _close_in_child() -> None:
    for server in list(_servers):
        server.close_in_child()


os.register_at_fork(after_in_child=_close_in_child)
