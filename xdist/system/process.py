"""One process of this host, held by a pidfd: whether it has ended, and the way to signal it.

The kernel gives a process number away again once the process is reaped; a pidfd stays the same
process. Only the kernel's "no such process" means that one has ended. Every other refusal (no
descriptor left, a system call that a sandbox forbids) means that nothing is known, and is an error
or "not ended", never a death. The launcher follows ranks, agents and callers with it, the
collectives follow the other ranks of the host.
"""

import contextlib
import errno
import math
import os
import select
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Sequence
from typing import Any

from torch_xdist.system.errors import ProcessError

# Linux 6.5 and 6.9; both are missing from Python's modules.
_SO_PEERPIDFD = 77
_TO_THE_GROUP = 1 << 2
_GONE = (errno.ESRCH, errno.ENOENT)
# What a kernel without pidfds says, or a sandbox that forbids them.
_NO_PIDFDS = (errno.ENOSYS, errno.EPERM)
_LOOK_S = 0.01


class Process:
    """The process that has number `pid` now, and no other one later.

    Open it while somebody vouches for the number: its parent, or the socket it is connected to.

    Args:
        pidfd: a pidfd of it, which then belongs to this object; None: one is opened.

    Raises:
        ProcessError: it cannot be watched.
    """

    def __init__(self, pid: int, pidfd: int | None = None) -> None:
        self.pid = pid
        self._gone = False
        self._pidfd: int | None = pidfd
        # Without pidfds: number and time of birth together are as good, but must be asked for.
        self._born = ""
        if pidfd is None:
            self._open()

    def _open(self) -> None:
        try:
            self._pidfd = os.pidfd_open(self.pid)
        except OSError as error:
            if error.errno == errno.ESRCH:
                self._gone = True
            elif error.errno in _NO_PIDFDS:
                self._born = born(self.pid)
                self._gone = not self._born
            else:
                raise _unknown(self.pid, error) from error

    @classmethod
    def at_other_end(cls, sock: socket.socket) -> "Process":
        """The process at the other end of a connected Unix socket.

        It is the one that called `connect` or `listen`; its number is 0 where it lives in a pid
        namespace that this one cannot see, and it can be followed all the same.

        Raises:
            ProcessError: it cannot be watched.
        """
        pid, _, _ = credentials(sock)
        try:
            pidfd = sock.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
        except OSError as error:
            if error.errno in (errno.ESRCH, errno.EINVAL):
                return cls._ended(pid)
            if pid == 0 or error.errno not in (errno.ENOPROTOOPT, *_NO_PIDFDS):
                raise _unknown(pid, error) from error
            return cls(pid)
        return cls(pid, pidfd)

    @classmethod
    def _ended(cls, pid: int) -> "Process":
        process = cls.__new__(cls)
        process.pid, process._gone, process._pidfd, process._born = pid, True, None, ""
        return process

    def ended(self) -> bool:
        """Whether it has ended; one that nobody has reaped yet has."""
        if not self._gone:
            self._gone = self._look()
        return self._gone

    def _look(self) -> bool:
        if self._pidfd is not None:
            return _readable(self._pidfd, 0.0)
        if not self._born:
            return False  # closed: what was known then still holds
        fields, known = _stat(self.pid)
        return known and (not fields or fields[0] in "ZX" or fields[19] != self._born)

    def wait(self, limit_s: float | None = None) -> bool:
        """Wait for its end; False where it lives after `limit_s` seconds."""
        if self._gone:
            return True
        if self._pidfd is not None:
            self._gone = _readable(self._pidfd, limit_s)
            return self._gone
        end_s = None if limit_s is None else time.monotonic() + limit_s
        while not self.ended():
            if end_s is not None and time.monotonic() >= end_s:
                return False
            time.sleep(_LOOK_S)
        return True

    def signal(self, number: int) -> bool:
        """Send it a signal; False where it has ended or belongs to somebody else."""
        try:
            if self._pidfd is not None:
                signal.pidfd_send_signal(self._pidfd, number)
            elif self.ended():
                return False
            else:
                os.kill(self.pid, number)
        except (ProcessLookupError, PermissionError):
            return False
        return True

    def signal_group(self, number: int) -> bool:
        """Send a signal to the process group that it leads or led, else to itself alone."""
        try:
            self._to_group(number)
        except (ProcessLookupError, PermissionError):
            return self.signal(number)
        return True

    def _to_group(self, number: int) -> None:
        if self._pidfd is not None:
            try:
                signal.pidfd_send_signal(self._pidfd, number, None, _TO_THE_GROUP)
                return
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
        # An older kernel: the number may name another group once the whole group is gone.
        os.killpg(self.pid, number)

    def state(self) -> str:
        """The kernel's letter: R runs, S sleeps, D waits for a disk, T is stopped; "": ended."""
        fields, _ = _stat(self.pid)
        # Asked last: while it lives, the number is its own.
        return "" if self.ended() or not fields else fields[0]

    def catches(self, number: int) -> bool:
        """Whether it has a handler for this signal now; False where that is unknown."""
        with contextlib.suppress(OSError, ValueError):
            with open(f"/proc/{self.pid}/status", encoding="utf-8", errors="replace") as file:
                rows = dict(line.split(":", 1) for line in file if ":" in line)
            caught = int(rows.get("SigCgt", "0").strip(), 16)
            return bool(caught >> (number - 1) & 1) and not self.ended()
        return False

    def fileno(self) -> int:
        """The pidfd, readable once the process has ended; for selectors.

        Raises:
            ProcessError: this kernel has none.
        """
        if self._pidfd is None:
            raise ProcessError(
                errno.ENOSYS, f"process {self.pid}: this kernel has no pidfds; use wait() instead"
            )
        return self._pidfd

    def close(self) -> None:
        """Give the descriptor back; whether it has ended is remembered, if it was known."""
        if self._pidfd is not None:
            self.ended()
            os.close(self._pidfd)
            self._pidfd = None

    def __enter__(self) -> "Process":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Child(Process):
    """A child of this process: it is reaped here, and `code` is how it ended.

    `code` is None while it lives, its exit code, or -n for signal n; it stays None where somebody
    else has waited for all children of this process.
    """

    code: int | None = None
    _popen: "subprocess.Popen[bytes] | None" = None

    @classmethod
    def start(cls, words: Sequence[str], **options: Any) -> "Child":
        """Start a program, with the options of `subprocess.Popen`."""
        popen = subprocess.Popen(words, **options)
        try:
            child = cls(popen.pid)
        except ProcessError:
            popen.kill()
            popen.wait()
            raise
        child._popen = popen
        return child

    def poll(self) -> int | None:
        """Reap it if it has ended; `code`."""
        if self.code is None and self.ended():
            self.code = self._popen.poll() if self._popen is not None else self._reap()
        return self.code

    def wait(self, limit_s: float | None = None) -> bool:
        """Wait for its end and reap it; False where it lives after `limit_s` seconds."""
        ended = super().wait(limit_s)
        self.poll()
        return ended

    def kill(self, *, group: bool = False) -> None:
        """SIGKILL; what has ended already is no error.

        Args:
            group: to all of its process group, which it leads, where it has not been reaped yet.
        """
        if group and self.code is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        self.signal(signal.SIGKILL)

    def _reap(self) -> int | None:
        try:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
        except ChildProcessError:
            return None
        return os.waitstatus_to_exitcode(status) if pid else None


def credentials(sock: socket.socket) -> tuple[int, int, int]:
    """(process, user, group) at the other end of a connected Unix socket, says the kernel."""
    size = struct.calcsize("3i")
    return struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))


def born(pid: int) -> str:
    """When a process started, in the kernel's clock ticks; "" where there is none.

    Raises:
        ProcessError: that cannot be read.
    """
    fields, known = _stat(pid)
    if not known:
        raise ProcessError(errno.EACCES, f"process {pid}: /proc/{pid}/stat cannot be read")
    return fields[19] if fields else ""


def state(pid: int) -> str:
    """The kernel's letter for whoever has this number now; "" for nobody, or unknown."""
    fields, _ = _stat(pid)
    return fields[0] if fields else ""


def _unknown(pid: int, error: OSError) -> ProcessError:
    return ProcessError(
        error.errno,
        f"process {pid} cannot be watched: {error.strerror}; whether it lives is unknown; raise "
        "the limit of open files (ulimit -n) if that is the reason",
    )


def _readable(fd: int, limit_s: float | None) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(None if limit_s is None else max(0, math.ceil(limit_s * 1000))))


def _stat(pid: int) -> tuple[list[str], bool]:
    """The fields of /proc/PID/stat after the name, and whether an empty list means "gone"."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split(), True
    except OSError as error:
        return [], error.errno in _GONE
