"""The control plane inside a pair of pipes, such as the stdin and stdout that ssh gives a command.

Whoever started the other side has vouched for it (ssh has authenticated and encrypts), so nothing
is said about tokens here. The messages are those of `control`, one frame each. The side that was
started begins with a mark: what a login shell prints before it is no message, and is kept for
whoever wants to know why no mark came.

Each side says something at least every `beat_s`, and takes the other one for lost after `lost_s`
without a word: a cut link ends no connection by itself. Two threads per stream; who sends never
waits.

A TCP connection whose two ends have proven one secret (`sealed`) carries the same: it is read and
written through its seals, and needs no mark.
"""

import contextlib
import os
import queue
import select
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch_xdist.launcher.sealed import Sealed
from torch_xdist.system import frames
from torch_xdist.system.errors import FrameError
from torch_xdist.system.frames import Decoder, Frame, Message

MARK = b"\0xla-run agent\n"
_READ_BYTES = 1 << 18
_MOST_NOISE_BYTES = 1 << 16
# Says only that its sender lives.
_HERE = frames.encode({"op": "here"})


class PipeStream:
    """One end.

    Args:
        read_fd, write_fd: the pipes, which then belong to this object.
        is_head: whether the other side is the one that was started.
        sealed: of a connection, whose other side has begun by its proof; None: pipes.
    """

    def __init__(
        self, read_fd: int, write_fd: int, *, is_head: bool, sealed: Sealed | None = None
    ) -> None:
        self._read_fd, self._write_fd, self._sealed = read_fd, write_fd, sealed
        self._awaits_mark = is_head and sealed is None
        self._noise = b""
        self._decoder = Decoder()
        self._frames: list[Frame] = []
        self._outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self.pending_bytes = 0
        """Of the messages that the pipe has not taken yet."""
        self._heard_s = 0.0
        self.is_lost = False
        """Whether the other side was silent for too long."""
        if not is_head and sealed is None:
            self.send_bytes(MARK)

    @classmethod
    def over(cls, sock: socket.socket, sealed: Sealed, *, is_head: bool) -> "PipeStream":
        """One end of a connection, which then belongs to it."""
        sock.settimeout(None)
        fd = sock.detach()
        return cls(os.dup(fd), fd, is_head=is_head, sealed=sealed)

    @property
    def noise(self) -> str:
        """What the other side printed instead of the mark, or before it."""
        return self._noise.decode(errors="replace")

    @property
    def has_begun(self) -> bool:
        """Whether the mark of the other side has come."""
        return not self._awaits_mark

    def first(self) -> Frame | None:
        """Wait for the first message, before `start`; None where the stream ends before it."""
        while not self._frames:
            data = os.read(self._read_fd, _READ_BYTES)
            if not data:
                return None
            self._frames += self._taken(self._opened(data))
        return self._frames.pop(0)

    def start(
        self,
        on_message: Callable[[Message, bytes], None],
        on_close: Callable[[str], None],
        *,
        beat_s: float,
        lost_s: float,
    ) -> None:
        """Begin to send and to hear; both functions are called on the thread that reads.

        Args:
            on_close: called once, with the reason, when nothing more will come.
            lost_s: how long the other side may be silent, once it has said something.
        """
        self._beat_s, self._lost_s = beat_s, lost_s
        for action, name in ((self._write, "pipe-write"), (self._read, "pipe-read")):
            threading.Thread(
                target=action, args=(on_message, on_close), daemon=True, name=name
            ).start()

    def keep_to(self, beat_s: float, lost_s: float) -> None:
        """Other limits than those of `start`, from now on."""
        self._beat_s, self._lost_s = beat_s, lost_s

    def send(self, message: Mapping[str, Any], blob: bytes = b"") -> None:
        """Queue a message."""
        self.send_bytes(frames.encode(message, *((blob,) if blob else ())))

    def send_bytes(self, data: bytes) -> None:
        """Queue bytes that are no message: what the other side reads before it knows of any."""
        with self._lock:
            self.pending_bytes += len(data)
        self._outbox.put(data)

    def silent_s(self) -> float:
        """For how long the other side has said nothing, once it has said something."""
        return time.monotonic() - self._heard_s if self._heard_s else 0.0

    def close(self, limit_s: float = 2.0) -> None:
        """Send what is queued, at most for `limit_s`, then end this side's stream."""
        self._outbox.put(None)
        end_s = time.monotonic() + limit_s
        while self._write_fd >= 0 and time.monotonic() < end_s:
            time.sleep(0.005)
        if self._sealed and self._write_fd >= 0:
            _shut(self._write_fd, socket.SHUT_RDWR)

    def abandon(self) -> None:
        """Give up a stream that was never started."""
        os.close(self._read_fd)
        os.close(self._write_fd)

    # ---- on threads ----------------------------------------------------------------------------

    def _write(self, *_: object) -> None:
        frame: bytes | None = b""
        with contextlib.suppress(OSError):
            while frame is not None:
                sealed = self._sealed.sealer.sealed(frame) if self._sealed else frame
                view = memoryview(sealed)
                while view:
                    view = view[os.write(self._write_fd, view) :]
                with self._lock:
                    self.pending_bytes -= len(frame)
                try:
                    frame = self._outbox.get(timeout=self._beat_s)
                except queue.Empty:
                    self.send_bytes(_HERE)
                    frame = self._outbox.get()
        fd, self._write_fd = self._write_fd, -1
        _shut(fd, socket.SHUT_WR)
        os.close(fd)

    def _read(
        self, on_message: Callable[[Message, bytes], None], on_close: Callable[[str], None]
    ) -> None:
        why = "its stream ended"
        try:
            for frame in self._heard():
                if frame.message["op"] != "here":
                    on_message(frame.message, frame.blob)
        except TimeoutError:
            self.is_lost = True
            why = f"no word from it for {self._lost_s:g} s"
        except ConnectionResetError:
            pass  # a connection whose other process has died with something unread
        except (OSError, FrameError) as error:
            why = str(error)
        if self._sealed:
            # Who waits for the other side to read waits no more.
            _shut(self._read_fd, socket.SHUT_RDWR)
        os.close(self._read_fd)
        on_close(why)

    def _heard(self) -> Iterator[Frame]:
        yield from self._frames
        ready = select.poll()
        ready.register(self._read_fd, select.POLLIN)
        # The limit begins with the first word: until then the rendezvous keeps the time.
        while self._awaits_mark or ready.poll(self._lost_s * 1000):
            data = os.read(self._read_fd, _READ_BYTES)
            if not data:
                return
            self._heard_s = time.monotonic()
            yield from self._taken(self._opened(data))
        raise TimeoutError

    def _opened(self, data: bytes) -> bytes:
        return self._sealed.opener.opened(data) if self._sealed else data

    def _taken(self, data: bytes) -> Iterator[Frame]:
        """The messages that these bytes complete."""
        if self._awaits_mark:
            self._noise += data
            before, mark, data = self._noise.partition(MARK)
            if not mark:
                if len(self._noise) > _MOST_NOISE_BYTES:
                    raise FrameError(f"{len(self._noise)} bytes came, and no agent among them")
                return
            self._noise, self._awaits_mark = before, False
        yield from self._decoder.feed(data)


def _shut(fd: int, how: int) -> None:
    """End one direction of a connection, or both, whoever else has a descriptor of it."""
    with contextlib.suppress(OSError):
        if stat.S_ISSOCK(os.fstat(fd).st_mode):
            with socket.socket(fileno=os.dup(fd)) as sock:
                sock.shutdown(how)
