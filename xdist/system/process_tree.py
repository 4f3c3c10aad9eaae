"""What Linux does for a tree of processes and Python has no function for: death signals, adoption
of orphans, and the sweep that leaves nothing of a job behind.

A process that is already gone is never an error. The launcher's agent and nursery call it.
"""

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Iterable, Iterator

from torch_xdist.system import process
from torch_xdist.system.errors import ProcessError
from torch_xdist.system.process import Process

_libc = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
# What is killed ends within this time, unless it waits for a disk.
_DEATH_S = 0.05


def die_with_parent(number: int = signal.SIGKILL) -> None:
    """Let the kernel send us signal `number` when the thread that started us ends; 0: no longer.

    The caller must compare os.getppid() with the parent it knows: it may have died before.
    """
    _libc.prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent dies (a child subreaper)."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


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
    return {
        pid
        for pid in (int(name) for name in os.listdir("/proc") if name.isdigit())
        if _has(pid, wanted) and process.state(pid) not in ("Z", "")
    }


def sweep(marker: str, keep: Iterable[int], roots: Iterable[int] = (), limit_s: float = 2.0) -> int:
    """SIGKILL every marked process and every descendant of `roots`, except `keep`; how many.

    Repeats until nothing new is found, because a process may fork while it is being killed. With
    keep={us, the nursery} nothing of a job is alive afterwards.
    """
    kept, roots, killed = set(keep), list(roots), set()
    end_s = time.monotonic() + limit_s
    while (left_s := end_s - time.monotonic()) > 0:
        alive = _living(marker, roots) - kept
        if not alive:
            break
        killed |= alive
        with contextlib.ExitStack() as stack:
            # To look takes a descriptor, too.
            with _one_descriptor_left():
                held = [stack.enter_context(p) for pid in alive if (p := _held(pid)) is not None]
            # A number may have gone to a stranger between the look and the grip: look again.
            still = _living(marker, roots)
            for victim in held:
                if victim.pid in still:
                    victim.signal(signal.SIGKILL)
            for victim in held:
                victim.wait(min(_DEATH_S, left_s))
    return len(killed)


@contextlib.contextmanager
def _one_descriptor_left() -> Iterator[None]:
    """What is opened meanwhile leaves one descriptor to be opened afterwards, if there was one."""
    try:
        spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        yield
        return
    try:
        yield
    finally:
        os.close(spare)


def _living(marker: str, roots: Iterable[int]) -> set[int]:
    """The marked and the descendants of `roots` that have not ended."""
    found = marked(marker).union(*(descendants(root) for root in roots))
    return {pid for pid in found if process.state(pid) not in ("Z", "")}


def _held(pid: int) -> Process | None:
    """The process; None where no descriptor is left, and it is killed by its number."""
    try:
        return Process(pid)
    except ProcessError:
        # A survivor is the greater harm.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
        return None


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


def close_all_but(keep: Iterable[int]) -> None:
    """Close every descriptor of this process but these."""
    kept = set(keep)
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in kept:
            with contextlib.suppress(OSError):
                os.close(int(name))


def _has(pid: int, marker: bytes) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as environ:
            return marker in environ.read().split(b"\0")
    except OSError:
        return False
