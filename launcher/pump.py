"""The output of a host's ranks: bytes in from pipes, one file per rank, complete lines out.

One thread reads every pipe, so that a rank waits for nothing but the disk. Whoever shows the lines
is only offered them: `Terminal` drops what a slow terminal cannot take, and says so; the files are
whole. A log directory that fails is one warning, never a dead job.
"""

import collections
import contextlib
import fcntl
import os
import selectors
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TextIO

from torch_xdist.launcher.lines import LineCutter

Show = Callable[[int, list[str]], None]
Warn = Callable[[str], None]

TAIL_LINES = 50
_TAIL_CHARACTERS = 1000
_READ_BYTES = 1 << 18
_PIPE_BYTES = 1 << 20
_F_SETPIPE_SZ = 1031
_LOOK_S = 1.0
_BAR_S = 10.0


class Pump:
    """Reads the ranks' pipes until they end.

    Args:
        log_dir: where `rank-N.log` goes (0600, appended to); None for no files.
        show: called in the pump's thread with a rank and its new lines; must not block.
        warn: called with one sentence, once, when log files cannot be written.
    """

    def __init__(self, log_dir: Path | None, show: Show, warn: Warn) -> None:
        self._files = LogFiles(log_dir, warn)
        self._show = show
        self._streams: dict[int, _Stream] = {}
        self._selector = selectors.DefaultSelector()
        self._lock = threading.Lock()
        self._stopping = False
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._selector.register(self._wake_read, selectors.EVENT_READ, None)
        self._thread = threading.Thread(target=self._run, name="xla-run-pump", daemon=True)
        self._thread.start()

    def add(self, rank: int, fd: int) -> None:
        """Read this pipe from now on; the pump owns and closes it. A rank may have several."""
        os.set_blocking(fd, False)
        # A larger pipe lets a rank go on while the pump is busy; the kernel may refuse.
        with contextlib.suppress(OSError):
            fcntl.fcntl(fd, _F_SETPIPE_SZ, _PIPE_BYTES)
        stream = _Stream(rank, fd)
        with self._lock:
            self._streams[fd] = stream
            self._selector.register(fd, selectors.EVENT_READ, stream)
        self._wake()

    def tail(self, rank: int) -> tuple[str, ...]:
        """The last lines of a rank, at most 50, each cut to 1000 characters."""
        return tuple(self._files.tail(rank))

    def path(self, rank: int) -> Path | None:
        """The rank's log file, or None without a log directory."""
        return self._files.path(rank)

    def wait(self, rank: int, limit_s: float = 2.0) -> bool:
        """Wait until all that a rank wrote has been read; False where a pipe is still open."""
        deadline_s = time.monotonic() + limit_s
        while True:
            with self._lock:
                open_ends = any(stream.rank == rank for stream in self._streams.values())
            if not open_ends or time.monotonic() >= deadline_s:
                return not open_ends
            time.sleep(0.005)

    def close(self, limit_s: float = 2.0) -> None:
        """Read what is there, at most for `limit_s`, and end; open pipes are closed on our side."""
        deadline_s = time.monotonic() + limit_s
        while self._streams and time.monotonic() < deadline_s:
            time.sleep(0.005)
        self._stopping = True
        self._wake()
        self._thread.join(limit_s + 5.0)
        for stream in list(self._streams.values()):
            self._end(stream)
        self._files.close()
        self._selector.close()
        for fd in (self._wake_read, self._wake_write):
            os.close(fd)

    def _run(self) -> None:
        looked_s = time.monotonic()
        while not self._stopping:
            for key, _ in self._selector.select(_LOOK_S):
                if key.data is None:
                    with contextlib.suppress(BlockingIOError):
                        os.read(self._wake_read, 4096)
                else:
                    self._read(key.data)
            now_s = time.monotonic()
            if now_s - looked_s >= _LOOK_S:
                looked_s = now_s
                self._show_bars(now_s)

    def _read(self, stream: "_Stream") -> None:
        try:
            data = os.read(stream.fd, _READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._end(stream)
            return
        self._files.write(stream.rank, data)
        self._offer(stream, stream.cutter.feed(data))

    def _end(self, stream: "_Stream") -> None:
        self._offer(stream, stream.cutter.finish())
        with self._lock:
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(stream.fd)
            self._streams.pop(stream.fd, None)
        # Last: once it is closed, `add` may be given a pipe with the same number.
        os.close(stream.fd)

    def _offer(self, stream: "_Stream", lines: list[str]) -> None:
        if not lines:
            return
        stream.offered_s = time.monotonic()
        self._files.remember(stream.rank, lines)
        self._show(stream.rank, lines)

    def _show_bars(self, now_s: float) -> None:
        """A progress bar ends its line after minutes: show how far it is now and then."""
        for stream in list(self._streams.values()):
            bar = stream.cutter.shown()
            if bar and bar != stream.bar and now_s - stream.offered_s >= _BAR_S:
                stream.bar, stream.offered_s = bar, now_s
                self._show(stream.rank, [bar])

    def _wake(self) -> None:
        with contextlib.suppress(OSError):
            os.write(self._wake_write, b"\n")


class _Stream:
    """One pipe of one rank."""

    def __init__(self, rank: int, fd: int) -> None:
        self.rank = rank
        self.fd = fd
        self.cutter = LineCutter()
        self.bar = ""
        self.offered_s = time.monotonic()


class LogFiles:
    """One file per rank, and its last lines in memory. Never raises; warns once in all."""

    def __init__(self, folder: Path | None, warn: Warn) -> None:
        self._folder = folder
        self._warn = warn
        self._warned = False
        self._fds: dict[int, int] = {}
        self._lost: collections.Counter[int] = collections.Counter()
        self._looked_s: dict[int, float] = {}
        self._tails: dict[int, collections.deque[str]] = {}
        if folder is not None:
            try:
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            except OSError as error:
                self._complain(error)

    def path(self, rank: int) -> Path | None:
        return self._folder / f"rank-{rank}.log" if self._folder is not None else None

    def remember(self, rank: int, lines: Sequence[str]) -> None:
        """Keep the last lines of a rank."""
        tail = self._tails.setdefault(rank, collections.deque(maxlen=TAIL_LINES))
        tail.extend(line[:_TAIL_CHARACTERS] for line in lines[-TAIL_LINES:])

    def tail(self, rank: int) -> list[str]:
        # A copy by slicing may meet a deque that the pump's thread is extending.
        for _ in range(100):
            with contextlib.suppress(RuntimeError):
                return list(self._tails.get(rank, ()))
        return []

    def write(self, rank: int, data: bytes) -> None:
        """Append bytes to the rank's file; what does not fit is counted, and noted when it does."""
        if self._folder is None:
            return
        lost = self._lost[rank]
        note = f"\n[{lost} bytes are missing here]\n".encode() if lost else b""
        whole, written = note + data, 0
        try:
            fd = self._open(rank)
            while written < len(whole):
                written += os.write(fd, whole[written:])
            self._lost[rank] = 0
        except OSError as error:
            # A note that was written accounts for what was lost before it.
            before = lost if written < len(note) else 0
            self._lost[rank] = before + len(data) - max(0, written - len(note))
            self._complain(error)

    def close(self) -> None:
        for fd in self._fds.values():
            os.close(fd)
        self._fds.clear()

    def _open(self, rank: int) -> int:
        fd = self._fds.get(rank)
        now_s = time.monotonic()
        if fd is not None and now_s - self._looked_s[rank] >= _LOOK_S:
            self._looked_s[rank] = now_s
            # Writing to a removed file succeeds, and is lost.
            if os.fstat(fd).st_nlink == 0:
                os.close(self._fds.pop(rank))
                raise FileNotFoundError(f"{self.path(rank)} was removed")
        if fd is None:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
            fd = os.open(str(self.path(rank)), flags, 0o600)
            self._fds[rank], self._looked_s[rank] = fd, now_s
        return fd

    def _complain(self, error: OSError) -> None:
        if not self._warned:
            self._warned = True
            why = error.strerror or str(error)
            self._warn(
                f"log directory {self._folder}: {why}; the job goes on, output is lost there"
            )


class Terminal:
    """Writes lines to a stream in a thread of its own, `[2] text` for rank 2.

    At most `most_bytes` wait for a slow terminal; what comes then is dropped, and counted in a line
    of its own once there is room.
    """

    def __init__(
        self, stream: TextIO = sys.stderr, most_bytes: int = 4 << 20, prefix: bool = True
    ) -> None:
        self._stream = stream
        self._most_bytes = most_bytes
        self._prefix = prefix
        self._queue: collections.deque[str] = collections.deque()
        self._queued_bytes = 0
        self._dropped = 0
        self._closing = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="xla-run-terminal", daemon=True)
        self._thread.start()

    def show(self, rank: int, lines: Sequence[str]) -> None:
        """Offer lines of a rank; never blocks."""
        if self._queued_bytes > self._most_bytes:
            self._dropped += len(lines)
            return
        start = f"[{rank}] " if self._prefix else ""
        self._offer("".join(f"{start}{line}\n" for line in lines))

    def say(self, line: str) -> None:
        """A line of our own: never dropped, in order with the ranks' lines."""
        self._offer(line + "\n")

    def close(self, limit_s: float = 5.0) -> None:
        """Write what waits, at most for `limit_s`."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(limit_s)

    def _offer(self, text: str) -> None:
        with self._changed:
            text = self._note() + text
            self._queue.append(text)
            self._queued_bytes += len(text)
            self._changed.notify()

    def _note(self) -> str:
        dropped, self._dropped = self._dropped, 0
        return f"[{dropped} lines not shown, they are in the logs]\n" if dropped else ""

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._queue and not self._closing:
                    self._changed.wait()
                if not self._queue:
                    break
                text = self._queue.popleft()
            self._write(text)
            with self._changed:
                self._queued_bytes -= len(text)
        self._write(self._note())

    def _write(self, text: str) -> None:
        # A terminal that was closed, or cannot show a character, must not end the job.
        try:
            self._stream.write(text)
            self._stream.flush()
        except UnicodeEncodeError:
            encoding = getattr(self._stream, "encoding", None) or "ascii"
            with contextlib.suppress(OSError, ValueError):
                self._stream.write(text.encode(encoding, "replace").decode(encoding))
                self._stream.flush()
        except (OSError, ValueError):
            pass
