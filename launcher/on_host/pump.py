"""The output of a host's ranks: bytes in from pipes, one file per rank, complete lines out.

One thread reads every pipe and another one writes the files, so that a rank waits for a disk only
as long as the disk moves. Whoever shows the lines is only offered them. Bad UTF-8 becomes
replacement characters, progress bars that redraw themselves with a carriage return are folded to
what they last showed, long lines are cut; memory stays bounded.
"""

import codecs
import contextlib
import fcntl
import os
import selectors
import threading
import time
from collections.abc import Callable
from pathlib import Path

from torch_xdist.launcher.on_host.log_files import LogFiles, Warn

# (rank, its new lines, what stands in its unfinished line where somebody types to it)
Show = Callable[[int, list[str], str], None]

LONGEST = 4000
_READ_BYTES = 1 << 18
_PIPE_BYTES = 1 << 20
_F_SETPIPE_SZ = 1031
_LOOK_S = 1.0
_BAR_S = 10.0


class Pump:
    """Reads the ranks' pipes until they end.

    Args:
        log_dir: where `rank-N.log` goes; None for no files.
        show: called in the pump's thread with a rank and its new lines; must not block.
        warn: called with one sentence, once, when log files cannot be written.
        drained: called in the pump's thread when a rank's last pipe has ended.
        ahead_s: how far the head's time of day is ahead of the one here; logs go by the head's.
    """

    def __init__(
        self,
        log_dir: Path | None,
        show: Show,
        warn: Warn,
        drained: Callable[[int], None] = lambda rank: None,
        ahead_s: float = 0.0,
    ) -> None:
        self._files = LogFiles(log_dir, warn, ahead_s)
        self._show, self._drained = show, drained
        self._streams: dict[int, _Stream] = {}
        self._selector = selectors.DefaultSelector()
        self._changed = threading.Condition()
        self._stopping = False
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._selector.register(self._wake_read, selectors.EVENT_READ, None)
        self._thread = threading.Thread(target=self._run, name="xla-run-pump", daemon=True)
        self._thread.start()

    def add(self, rank: int, fd: int, *, interactive: bool = False) -> None:
        """Read this pipe from now on; the pump owns and closes it. A rank may have several.

        Args:
            interactive: somebody types to this rank: a prompt is shown before its line ends.
        """
        os.set_blocking(fd, False)
        # A larger pipe lets a rank go on while the pump is busy; the kernel may refuse.
        with contextlib.suppress(OSError):
            fcntl.fcntl(fd, _F_SETPIPE_SZ, _PIPE_BYTES)
        stream = _Stream(rank, fd, interactive)
        with self._changed:
            self._streams[fd] = stream
            self._selector.register(fd, selectors.EVENT_READ, stream)
        self._wake()

    def tail(self, rank: int) -> tuple[str, ...]:
        """The last lines of a rank, at most 50, each cut to 1000 characters."""
        return self._files.tail(rank)

    def note(self, rank: int, text: str) -> None:
        """Write into a rank's log file what it did not print itself; never blocks."""
        if text:
            self._files.write(rank, text.encode(errors="replace"), may_wait=False)

    def is_drained(self, rank: int) -> bool:
        """Whether all that a rank wrote has been read: no pipe of it is open."""
        with self._changed:
            return all(stream.rank != rank for stream in self._streams.values())

    def flush(self, rank: int, limit_s: float) -> None:
        """Wait until the log of a rank that has ended is whole, at most for `limit_s`."""
        end_s = time.monotonic() + limit_s
        while not self.is_drained(rank) and time.monotonic() < end_s:
            time.sleep(0.02)
        self._files.flush(max(0.0, end_s - time.monotonic()))

    def close(self, limit_s: float = 2.0) -> None:
        """Read what is there, at most for `limit_s`, and end; open pipes are closed on our side."""
        with self._changed:
            self._changed.wait_for(lambda: not self._streams, limit_s)
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
        self._offer(stream, stream.cutter.feed(data))
        self._files.write(stream.rank, data)

    def _end(self, stream: "_Stream") -> None:
        self._offer(stream, stream.cutter.finish())
        with self._changed:
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(stream.fd)
            self._streams.pop(stream.fd, None)
            self._changed.notify_all()
        # Last: once it is closed, `add` may be given a pipe with the same number.
        os.close(stream.fd)
        if self.is_drained(stream.rank):
            self._drained(stream.rank)

    def _offer(self, stream: "_Stream", lines: list[str]) -> None:
        unfinished = stream.cutter.shown() if stream.interactive else ""
        if not lines and not unfinished:
            return
        stream.offered_s = time.monotonic()
        self._files.remember(stream.rank, lines)
        self._show(stream.rank, lines, unfinished)

    def _show_bars(self, now_s: float) -> None:
        """A progress bar ends its line after minutes: show how far it is now and then."""
        for stream in list(self._streams.values()):
            bar = stream.cutter.shown()
            waited_s = now_s - stream.offered_s
            if bar and bar != stream.bar and waited_s >= _BAR_S and not stream.interactive:
                stream.bar, stream.offered_s = bar, now_s
                self._show(stream.rank, [bar], "")

    def _wake(self) -> None:
        with contextlib.suppress(OSError):
            os.write(self._wake_write, b"\n")


class _Stream:
    """One pipe of one rank."""

    def __init__(self, rank: int, fd: int, interactive: bool) -> None:
        self.rank, self.fd, self.interactive = rank, fd, interactive
        self.cutter = LineCutter()
        self.bar = ""
        self.offered_s = time.monotonic()


class LineCutter:
    """Cuts a stream into lines, however it is chopped.

    Args:
        longest: characters of a line that are kept; what follows is counted and dropped.
    """

    def __init__(self, longest: int = LONGEST) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._longest = longest
        self._line = ""
        self._cut = 0
        self._bar = ""  # what the line showed before its last carriage return

    def feed(self, data: bytes) -> list[str]:
        """The lines that `data` completes, without their ends."""
        return self._text(self._decoder.decode(data))

    def finish(self) -> list[str]:
        """The end of the stream: what is left counts as a line."""
        lines = self._text(self._decoder.decode(b"", final=True))
        last = self._complete()
        return [*lines, last] if last else lines

    def shown(self) -> str:
        """What stands in the unfinished line now: a prompt, or the state of a progress bar."""
        return self._folded()

    def _text(self, text: str) -> list[str]:
        first, *rest = text.split("\n")
        self._append(first)
        if not rest:
            return []
        lines = [self._complete()]
        *whole, last = rest
        if "\r" not in text and max(map(len, whole), default=0) <= self._longest:
            lines += whole
        else:
            for line in whole:
                self._append(line)
                lines.append(self._complete())
        self._append(last)
        return lines

    def _append(self, text: str) -> None:
        """Add to the unfinished line; a carriage return starts its next state."""
        first, *states = text.split("\r")
        self._keep(first)
        for state in states:
            self._bar = self._folded()
            self._line, self._cut = "", 0
            self._keep(state)

    def _keep(self, text: str) -> None:
        room = self._longest - len(self._line)
        self._line += text[:room]
        self._cut += max(0, len(text) - room)

    def _folded(self) -> str:
        """What the line shows: its newest state, or the one before where that is blank.

        So a carriage return before the line's end changes nothing.
        """
        if self._bar and not self._line.strip():
            return self._bar
        return self._line + (f" ... [{self._cut} more characters in the log]" * bool(self._cut))

    def _complete(self) -> str:
        line = self._folded()
        self._line, self._bar, self._cut = "", "", 0
        return line
