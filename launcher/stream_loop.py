"""The one thread that serves what is listened to in this process: streams, and lines of stderr.

A head has a stream for each host, and over ssh another descriptor for what ssh says. A thread for
each would be thousands, of which each message wakes one. This one waits for all descriptors at
once, and serves in turn whoever has news, was roused, or is due; so nobody may wait in `serve`.

It waits on duplicates: members close and replace their descriptors on other threads, and the kernel
would go on to report a closed one that another process still holds.
"""

import contextlib
import heapq
import itertools
import math
import os
import select
import sys
import threading
import time
from collections.abc import Hashable
from typing import NamedTuple, Protocol

# A wait beyond it overflows the kernel's.
_LONG_S = 3600.0
_READABLE = select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR


class Descriptors(NamedTuple):
    """What to listen to; another `key` says that a descriptor is another one under its number."""

    key: Hashable = None
    read: int = -1
    write: int = -1


class Served(Protocol):
    """What the loop serves."""

    def descriptors(self) -> Descriptors:
        """Those that are to wake it; asked after each turn."""

    def due_s(self) -> float:
        """When it is to be served without any news, on the monotonic clock."""

    def serve(self, since_s: float, *, has_news: bool) -> bool:
        """One turn, which waits for nothing; whether there will be another.

        Args:
            since_s: when the loop began to wait: who was stopped meanwhile has missed nothing.
            has_news: whether something can be read.
        """


class StreamLoop:
    """The thread; it is there as long as there is something to serve."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._roused: dict[Served, None] = {}
        self._is_running, self._wake = False, -1

    def rouse(self, member: Served) -> None:
        """Serve it soon, from now on; from any thread."""
        with self._lock:
            self._roused[member] = None
            if not self._is_running:
                self._is_running, self._wake = True, os.eventfd(0, os.EFD_NONBLOCK)
                threading.Thread(
                    target=self._run, args=(self._wake,), daemon=True, name="streams"
                ).start()
            os.eventfd_write(self._wake, 1)

    def _run(self, wake: int) -> None:
        watch = _Watch(wake)
        while not self._is_over(watch):
            since_s = time.monotonic()
            news = watch.wait(since_s)
            with self._lock:
                roused, self._roused = self._roused, {}
            turns = {**dict.fromkeys(watch.due(time.monotonic())), **roused, **news}
            for member in turns:
                if _served(member, since_s, has_news=bool(news.get(member))):
                    watch.follow(member)
                else:
                    watch.drop(member)
        watch.close()

    def _is_over(self, watch: "_Watch") -> bool:
        with self._lock:
            if self._roused or len(watch):
                return False
            os.close(self._wake)
            self._is_running, self._wake = False, -1
            return True


def _served(member: Served, since_s: float, *, has_news: bool) -> bool:
    """One turn; an error that a member has not foreseen is told, and ends that member alone."""
    try:
        return member.serve(since_s, has_news=has_news)
    except Exception:
        kind, error, trace = sys.exc_info()
        told = (kind, error, trace, threading.current_thread())
        threading.excepthook(threading.ExceptHookArgs(told))
        return False


class _Watched:
    """What is listened to for a member: duplicates of its descriptors, and when it is due."""

    def __init__(self) -> None:
        self.key: Hashable = None
        self.own = {"read": -1, "write": -1}
        self.due_s = math.inf


class _Watch:
    """The kernel's list of descriptors, and the times."""

    def __init__(self, wake: int) -> None:
        self._epoll, self._wake = select.epoll(), wake
        self._epoll.register(wake, select.EPOLLIN)
        self._members: dict[Served, _Watched] = {}
        self._of_fd: dict[int, Served] = {}
        self._times: list[tuple[float, int, Served]] = []
        self._counter = itertools.count()

    def __len__(self) -> int:
        return len(self._members)

    def wait(self, now_s: float) -> dict[Served, bool]:
        """Those whose descriptors are ready, and whether they can be read."""
        first_s = self._times[0][0] if self._times else math.inf
        limit_s = min(max(0.0, first_s - now_s), _LONG_S)
        found: dict[Served, bool] = {}
        # Whoever has news must not be taken for silent because others have some, too.
        for fd, events in self._epoll.poll(_rounded_up(limit_s), len(self._of_fd) + 1):
            if fd == self._wake:
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(fd)
                continue
            member = self._of_fd[fd]
            is_read = fd == self._members[member].own["read"] and bool(events & _READABLE)
            found[member] = found.get(member, False) or is_read
        return found

    def due(self, now_s: float) -> list[Served]:
        """Those whose time has come."""
        found = []
        while self._times and self._times[0][0] <= now_s:
            due_s, _, member = heapq.heappop(self._times)
            watched = self._members.get(member)
            if watched is not None and watched.due_s == due_s:
                watched.due_s = math.inf
                found.append(member)
        return found

    def follow(self, member: Served) -> None:
        """From now on, as it wants to be waked."""
        watched = self._members.setdefault(member, _Watched())
        wanted = member.descriptors()
        if wanted.key != watched.key:
            self._leave(watched, "read", "write")
            watched.key = wanted.key
        self._keep(member, watched, "read", wanted.read, select.EPOLLIN)
        self._keep(member, watched, "write", wanted.write, select.EPOLLOUT)
        due_s = member.due_s()
        if due_s != watched.due_s:
            watched.due_s = due_s
            if due_s < math.inf:
                heapq.heappush(self._times, (due_s, next(self._counter), member))

    def drop(self, member: Served) -> None:
        """Listen no more."""
        if (watched := self._members.pop(member, None)) is not None:
            self._leave(watched, "read", "write")

    def close(self) -> None:
        """Listen to nobody."""
        for member in list(self._members):
            self.drop(member)
        self._epoll.close()

    def _keep(self, member: Served, watched: _Watched, side: str, fd: int, events: int) -> None:
        if fd < 0:
            self._leave(watched, side)
        elif watched.own[side] < 0:
            # One that was closed just now rouses the loop again.
            with contextlib.suppress(OSError):
                own = watched.own[side] = os.dup(fd)
                self._of_fd[own] = member
                self._epoll.register(own, events)

    def _leave(self, watched: _Watched, *sides: str) -> None:
        for side in sides:
            if (own := watched.own[side]) >= 0:
                watched.own[side] = -1
                del self._of_fd[own]
                with contextlib.suppress(OSError):
                    self._epoll.unregister(own)
                os.close(own)


def _rounded_up(seconds: float) -> float:
    """In whole milliseconds, which the kernel counts: not a moment before it is due."""
    return math.ceil(seconds * 1000) / 1000


class Lines:
    """Tells each line that comes through a descriptor, until its end.

    Args:
        fd: which then belongs to this object.
        on_line: called on the thread of the loop, with the line stripped; not for empty ones.
    """

    def __init__(self, fd: int, on_line: "OnLine") -> None:
        os.set_blocking(fd, False)
        self._file, self._on_line, self._rest = os.fdopen(fd, "rb", buffering=0), on_line, b""
        self.ended = threading.Event()
        """Whether nothing more comes."""

    def start(self) -> None:
        """From now on."""
        LOOP.rouse(self)

    def descriptors(self) -> Descriptors:
        return Descriptors(self, self._file.fileno())

    def due_s(self) -> float:
        return math.inf

    def serve(self, since_s: float, *, has_news: bool) -> bool:
        data = self._file.read(1 << 16)
        if data is None:  # nothing there
            return True
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines if data else [*lines, self._rest]:
            if text := line.decode(errors="replace").strip():
                self._on_line(text)
        if not data:
            self._file.close()
            self.ended.set()
        return bool(data)


class OnLine(Protocol):
    """Takes a line."""

    def __call__(self, line: str) -> None: ...


LOOP = StreamLoop()


def _begin_anew() -> None:
    """A forked child has no thread, and its streams are the parent's."""
    global LOOP
    LOOP = StreamLoop()


os.register_at_fork(after_in_child=_begin_anew)
