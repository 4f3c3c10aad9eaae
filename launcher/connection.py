"""One connection of a stream: a pair of pipes, or a socket behind its seals, as bytes and frames.

It knows nothing of what was said before it, or will be said after it: that is `pipe_stream`'s.
"""

import contextlib
import os
import select
import socket
import stat
import struct
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from torch_xdist.launcher.facts.errors import HostError
from torch_xdist.launcher.sealed import Opener, Sealed, Sealer
from torch_xdist.launcher.tls import Tls
from torch_xdist.system import frames
from torch_xdist.system.errors import FrameError
from torch_xdist.system.frames import Decoder, Frame

# What the side that was started says first; before it may come what a login shell prints.
MARK = b"\0xla-run agent\n"
# What stands before the end of a pipe whose writer has died, where somebody could still write it:
# the end of a connection looks the same otherwise. No message ends so.
LAST_WORD = b"\xff\0xla-run: the head has died\0\xff"
_READ_BYTES = 1 << 18
_WRITE_BYTES = 1 << 20
_MOST_NOISE_BYTES = 1 << 16
# struct linger: what was not sent is given up, and the other side reads a reset, no end.
_NO_LINGER = struct.pack("ii", 1, 0)


class Connection:
    """Two descriptors, which belong to it.

    Args:
        sealed: of a socket, whose other side has begun by its proof; None: pipes.
        tls: what is said in pipes is inside it, once both ends have shaken hands; None: nothing is.
        awaits_mark: whether the other side was started, and begins with the mark.
    """

    def __init__(
        self,
        read_fd: int,
        write_fd: int,
        sealed: Sealed | None = None,
        *,
        tls: Tls | None = None,
        awaits_mark: bool,
    ) -> None:
        self.read_fd, self.write_fd, self.sealed = read_fd, write_fd, sealed
        self._awaits_mark, self._noise, self._tail = awaits_mark, b"", b""
        self._opener: Opener | Tls | None = sealed.opener if sealed else tls
        self._sealer: Sealer | Tls | None = sealed.sealer if sealed else tls
        self._shaking = tls if tls is not None and not tls.is_shaken else None
        self._held: list[bytes | memoryview] = []
        self._decoder = Decoder()
        self._out = memoryview(b"")
        self.frames: deque[Frame] = deque()
        """What has come and was not taken yet."""

    @classmethod
    def over(cls, sock: socket.socket, sealed: Sealed | None) -> "Connection":
        """A socket, which then belongs to it."""
        sock.settimeout(None)
        fd = sock.detach()
        return cls(os.dup(fd), fd, sealed, awaits_mark=False)

    @property
    def noise(self) -> str:
        """What the other side printed instead of the mark, or before it."""
        return self._noise.decode(errors="replace")

    @property
    def has_begun(self) -> bool:
        """Whether the mark of the other side has come."""
        return not self._awaits_mark

    @property
    def ended_for_good(self) -> bool:
        """Whether the end came behind the last word of a head that has died."""
        return self._tail.endswith(LAST_WORD)

    def begins(self, limit_s: float) -> bool:
        """Write what waits, then wait for the mark of the other side."""
        end_s = time.monotonic() + limit_s
        while not self.flush():
            select.select([], [self.write_fd], [], max(0.0, end_s - time.monotonic()))
        while not self.has_begun:
            if not _is_readable(self.read_fd, end_s - time.monotonic()) or not self.read():
                return False
        return True

    def first(self, limit_s: float | None = None) -> Frame | None:
        """Wait for a message; None where the connection ends before it, or the limit is over."""
        end_s = None if limit_s is None else time.monotonic() + limit_s
        while not self.frames:
            if end_s is not None and not _is_readable(self.read_fd, end_s - time.monotonic()):
                return None
            if not self.read():
                return None
        return self.frames.popleft()

    def read(self) -> bool:
        """Take what has come, and wait for it where the descriptor waits; False at the end.

        Raises:
            FrameError: it is no message, or a record without its seal.
            OSError: the connection broke.
        """
        try:
            data = os.read(self.read_fd, _READ_BYTES)
        except BlockingIOError:
            return True
        if not data:
            return False
        self._tail = (self._tail + data[-len(LAST_WORD) :])[-len(LAST_WORD) :]
        self._take(data)
        return True

    def put(self, data: bytes | memoryview) -> None:
        """Bytes to be written before all that is put later."""
        if self._shaking is not None:
            self._held.append(data)
        else:
            self.put_open(self._sealer.sealed(data) if self._sealer else data)

    def put_open(self, data: bytes | memoryview) -> None:
        """Likewise, for whoever reads it before anything is sealed."""
        self._out = memoryview(b"".join((self._out, data)) if self._out else data)

    def say(self, message: Mapping[str, Any]) -> None:
        """Write a message at once, before a stream has this connection.

        Raises:
            OSError: the connection broke.
        """
        self.put(frames.encode(message))
        while not self.flush():
            select.select([], [self.write_fd], [])

    def flush(self) -> bool:
        """Write what fits; whether nothing waits any more.

        Raises:
            OSError: the other side does not read any more.
        """
        while self._out:
            try:
                written = os.write(self.write_fd, self._out[:_WRITE_BYTES])
            except BlockingIOError:
                return False
            except OSError:
                self._out = memoryview(b"")
                raise
            self._out = self._out[written:]
        return True

    @property
    def is_stuck(self) -> bool:
        """Whether something waits for room."""
        return bool(self._out)

    def end_writing(self) -> None:
        """The other side reads an end; what it says can still be read."""
        fd, self.write_fd = self.write_fd, -1
        if fd >= 0:
            _shut(fd, socket.SHUT_WR)
            os.close(fd)

    def close(self) -> None:
        """Both directions end, whoever waits for them."""
        if self.sealed:
            _shut(self.read_fd, socket.SHUT_RDWR)
        self.end_writing()
        os.close(self.read_fd)

    def break_off(self) -> None:
        """It is given up, and its process goes on: an end would say that this has ended."""
        if self.sealed:
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(self.read_fd)) as sock:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        for fd in (self.write_fd, self.read_fd):
            if fd >= 0:
                os.close(fd)
        self.write_fd = -1

    def _take(self, data: bytes) -> None:
        """Cut off the messages that these bytes complete."""
        if self._awaits_mark:
            self._noise += data
            before, mark, data = self._noise.partition(MARK)
            if not mark:
                if len(self._noise) > _MOST_NOISE_BYTES:
                    raise FrameError(f"{len(self._noise)} bytes came, and no agent among them")
                return
            self._noise, self._awaits_mark = before, False
        if self._shaking is not None:
            data = self._shaken(self._shaking, data)
        elif self._opener is not None:
            data = self._opener.opened(data)
        self.frames += self._decoder.feed(data)

    def _shaken(self, tls: Tls, data: bytes) -> bytes:
        """What has come inside, after a step of the handshake; then what was held goes out."""
        try:
            self.put_open(tls.shaken(data))
        except HostError as error:
            raise FrameError(str(error)) from None
        if not tls.is_shaken:
            return b""
        self._shaking = None
        for held in self._held:
            self.put(held)
        self._held.clear()
        return tls.opened(b"")


def _is_readable(fd: int, limit_s: float) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(max(0.0, limit_s) * 1000))


def _shut(fd: int, how: int) -> None:
    """End one direction of a connection, or both, whoever else has a descriptor of it."""
    with contextlib.suppress(OSError):
        if stat.S_ISSOCK(os.fstat(fd).st_mode):
            with socket.socket(fileno=os.dup(fd)) as sock:
                sock.shutdown(how)
