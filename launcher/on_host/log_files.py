"""The log files of a host's ranks: `rank-N.log`, byte for byte, written by a thread of their own.

Nobody but that thread touches the disk, so a disk that hangs holds up nobody for longer than it
takes to notice. A directory that fails is one warning, never a dead job; the file says how many
bytes are missing once it can be written again. `rank-N.times` says when which part was written,
once a second, for `xla-run logs --since`.
"""

import collections
import contextlib
import errno
import os
import struct
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch_xdist.launcher.shipping.manifest import size_text

Warn = Callable[[str], None]

TAIL_LINES = 50
_TAIL_CHARACTERS = 1000
# Unix time, and the offset in the log from which on it counts.
TIME_MARK = struct.Struct("<dQ")
_MOST_QUEUED_BYTES = 16 << 20
_HUNG_S = 5.0
_CLOSE_S = 4.0
_LOOK_S = 1.0
_ADVICE = "remove what else lies there, or name another place by --log-dir"
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass
class _OpenLog:
    """An open log file: where its end is, when it was last looked at, its file of times."""

    fd: int
    times: int
    end: int
    looked_s: float
    marked_s: float = 0.0


class LogFiles:
    """One file per rank, and its last lines in memory. Never raises; warns once in all.

    Args:
        folder: made if it is not there; None: no files.
        ahead_s: what is added to the time of day here: clocks of hosts differ, and `--since` is
            asked on the head's.
    """

    def __init__(self, folder: Path | None, warn: Warn, ahead_s: float = 0.0) -> None:
        self._folder, self._warn, self._ahead_s = folder, warn, ahead_s
        self._warned = False
        self._logs: dict[int, _OpenLog] = {}
        self._lost: collections.Counter[int] = collections.Counter()
        self._tails: dict[int, collections.deque[str]] = {}
        self._queue: collections.deque[tuple[int, bytes]] = collections.deque()
        self._queued_bytes = 0
        self._closing = False
        self._busy_since_s: float | None = None
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="xla-run-logs", daemon=True)
        if folder is not None:
            self._thread.start()

    def remember(self, rank: int, lines: Sequence[str]) -> None:
        """Keep the last lines of a rank."""
        with self._changed:
            tail = self._tails.setdefault(rank, collections.deque(maxlen=TAIL_LINES))
            tail.extend(line[:_TAIL_CHARACTERS] for line in lines[-TAIL_LINES:])

    def tail(self, rank: int) -> tuple[str, ...]:
        """The last lines of a rank."""
        with self._changed:
            return tuple(self._tails.get(rank, ()))

    def write(self, rank: int, data: bytes, *, may_wait: bool = True) -> None:
        """Append bytes to the rank's file; waits for a slow disk, and not for one that hangs."""
        if self._folder is None:
            return
        with self._changed:
            while may_wait and self._is_full() and not self._is_hung():
                self._changed.wait(0.1)
            if self._is_full():
                self._lost[rank] += len(data)
                self._complain(f"a write has not come back for {_HUNG_S:g} s")
                return
            self._queue.append((rank, data))
            self._queued_bytes += len(data)
            self._changed.notify_all()

    def flush(self, limit_s: float) -> None:
        """Wait until all is written, at most for `limit_s`; files stay open."""
        with self._changed:
            self._changed.wait_for(lambda: not (self._queue or self._busy_since_s), limit_s)

    def close(self, limit_s: float = _CLOSE_S) -> None:
        """Write what waits, at most for `limit_s`."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._folder is not None:
            self._thread.join(limit_s)

    def _is_full(self) -> bool:
        return self._queued_bytes > _MOST_QUEUED_BYTES

    def _is_hung(self) -> bool:
        since_s = self._busy_since_s
        return since_s is not None and time.monotonic() - since_s > _HUNG_S

    # ---- on the thread that writes -------------------------------------------------------------

    def _run(self) -> None:
        assert self._folder is not None
        self._busy_since_s = time.monotonic()
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            self._complain_of(error)
        while (item := self._next()) is not None:
            self._append(*item)
        for log in self._logs.values():
            _close(log)
        self._logs.clear()

    def _next(self) -> tuple[int, bytes] | None:
        with self._changed:
            self._busy_since_s = None
            self._changed.notify_all()
            while not self._queue and not self._closing:
                self._changed.wait()
            if not self._queue:
                return None
            rank, data = self._queue.popleft()
            self._queued_bytes -= len(data)
            self._busy_since_s = time.monotonic()
            return rank, data

    def _append(self, rank: int, data: bytes) -> None:
        """Write, or count what does not fit; the count is written where there is room again."""
        lost = self._lost[rank]
        note = f"\n[{lost} bytes are missing here]\n".encode() if lost else b""
        whole, written = note + data, 0
        try:
            log = self._open(rank)
            while written < len(whole):
                written += os.write(log.fd, whole[written:])
            self._mark(log)
            missing = -lost
        except OSError as error:
            # A note that was written accounts for what was lost before it.
            missing = (
                len(data) - max(0, written - len(note)) - (lost if written >= len(note) else 0)
            )
            self._complain_of(error)
        if rank in self._logs:
            self._logs[rank].end += written
        with self._changed:
            self._lost[rank] += missing

    def _open(self, rank: int) -> _OpenLog:
        assert self._folder is not None
        log, now_s = self._logs.get(rank), time.monotonic()
        path = self._folder / f"rank-{rank}.log"
        if log is not None and now_s - log.looked_s >= _LOOK_S:
            log.looked_s = now_s
            # Writing to a removed file succeeds, and is lost.
            if os.fstat(log.fd).st_nlink == 0:
                _close(self._logs.pop(rank))
                raise FileNotFoundError(2, f"{path} was removed")
        if log is None:
            fd = os.open(path, _FLAGS, 0o600)
            times = os.open(path.with_suffix(".times"), _FLAGS, 0o600)
            log = self._logs[rank] = _OpenLog(fd, times, os.fstat(fd).st_size, now_s)
        return log

    def _mark(self, log: _OpenLog) -> None:
        now_s = time.monotonic()
        if now_s - log.marked_s >= _LOOK_S:
            log.marked_s = now_s
            os.write(log.times, TIME_MARK.pack(time.time() + self._ahead_s, log.end))

    def _complain(self, why: str, advice: str = "") -> None:
        if not self._warned:
            self._warned = True
            lost = "the job goes on, output is lost there"
            self._warn(f"log directory {self._folder}: {why}; {lost}{advice}")

    def _complain_of(self, error: OSError) -> None:
        why = error.strerror or str(error)
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            self._complain(why)
            return
        self._complain(f"{why} ({_room(self._folder)})", f" until there is room; {_ADVICE}")


def _room(folder: Path | None) -> str:
    """What is free where a folder is, or was to be; a disk may have less for one user."""
    for place in (folder, *folder.parents) if folder else ():
        with contextlib.suppress(OSError):
            found = os.statvfs(place)
            return f"{size_text(found.f_bavail * found.f_frsize)} free"
    return "nobody says how much is free"


def _close(log: _OpenLog) -> None:
    for fd in (log.fd, log.times):
        with contextlib.suppress(OSError):
            os.close(fd)
