"""What Linux can do for processes and Python has no function for: death signals, reaping, sweeps.

Every function takes plain process ids; a process that is already gone is never an error.
"""

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Iterable

_libc = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def die_with_parent(number: int = signal.SIGKILL) -> None:
    """Let the kernel send us signal `number` when the thread that started us ends; 0: no longer.

    The caller must compare os.getppid() with the parent it knows: it may have died before.
    """
    _libc.prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent dies (a child subreaper)."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def kill(pid: int, number: int) -> None:
    """Send a signal to one process."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def kill_group(pid: int, number: int) -> None:
    """Send a signal to the process group that `pid` leads, or to `pid` alone if it leads none."""
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):
        kill(pid, number)


def state(pid: int) -> str:
    """The kernel's letter: R runs, S sleeps, D waits for a disk, T stopped, Z dead; "": gone."""
    fields = _stat(pid)
    return fields[0] if fields else ""


def children(pid: int) -> list[int]:
    """The processes that `pid` started or adopted and that it has not reaped."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with (
                contextlib.suppress(OSError),
                open(f"/proc/{pid}/task/{task}/children") as listing,
            ):
                found += map(int, listing.read().split())
    return found


def descendants(pid: int) -> set[int]:
    """Children, their children, and so on."""
    found: set[int] = set()
    fresh = children(pid)
    while fresh:
        child = fresh.pop()
        if child not in found:
            found.add(child)
            fresh += children(child)
    return found


def marked(marker: str) -> set[int]:
    """The living processes that were started with `marker` ("NAME=value") in their environment.

    A forked process shows the environment of the program it was forked from.
    """
    wanted = marker.encode()
    found = set()
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/environ", "rb") as environ:
                hit = wanted in environ.read().split(b"\0")
        except OSError:
            continue
        if hit and state(int(name)) not in ("Z", ""):
            found.add(int(name))
    return found


def sweep(marker: str, keep: Iterable[int], roots: Iterable[int] = (), limit_s: float = 2.0) -> int:
    """SIGKILL every marked process and every descendant of `roots`, except `keep`; how many.

    Repeats until nothing new is found, because a process may fork while it is being killed. With
    keep={us, the nursery} nothing of a job is alive afterwards.
    """
    kept, killed = set(keep), set()
    roots = list(roots)
    deadline_s = time.monotonic() + limit_s
    while time.monotonic() < deadline_s:
        below = set().union(*(descendants(root) for root in roots)) if roots else set()
        alive = {pid for pid in (marked(marker) | below) - kept if state(pid) not in ("Z", "")}
        if not alive:
            break
        for pid in alive:
            kill(pid, signal.SIGKILL)
        killed |= alive
        time.sleep(0.02)
    return len(killed)


def close_all_but(keep: Iterable[int]) -> None:
    """Close every descriptor of this process but these."""
    kept = set(keep)
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in kept:
            with contextlib.suppress(OSError):
                os.close(int(name))


def reap() -> list[tuple[int, int]]:
    """Collect every child that has ended: (pid, exit code, or -n for signal n)."""
    ended: list[tuple[int, int]] = []
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended.append((pid, os.waitstatus_to_exitcode(status)))


def _stat(pid: int) -> list[str]:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()
    except (OSError, IndexError):
        return []
