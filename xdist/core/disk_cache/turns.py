"""Who compiles a program first, of the processes that want it at the same time.

A turn is a lock on one byte of a file, the byte that the program's name says: the system gives it
back when its process dies, and nothing is left of it. Where a file system has no locks, all
processes compile at once.
"""

import contextlib
import fcntl
import os
import time

FILE = "turns"
_LEAST_PAUSE_S, _MOST_PAUSE_S = 0.01, 0.2


class Turns:
    """The turns of a folder."""

    def __init__(self, folder: int) -> None:
        self._file = os.open(FILE, os.O_RDWR | os.O_CREAT, 0o600, dir_fd=folder)

    def begin(self, name: str) -> bool:
        """Whether nobody else has this turn; it is then ours until `end`."""
        return self._lock(name, fcntl.LOCK_EX)

    def end(self, name: str) -> None:
        """Give a turn back."""
        with contextlib.suppress(OSError):
            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, _byte(name))

    def wait(self, name: str, limit_s: float) -> bool:
        """Wait for the end of somebody else's turn; False where it took longer than that."""
        pause_s, until_s = _LEAST_PAUSE_S, time.monotonic() + limit_s
        # All who wait go on at once: they find the program, or each compiles it.
        while not self._lock(name, fcntl.LOCK_SH):
            if time.monotonic() >= until_s:
                return False
            time.sleep(pause_s)
            pause_s = min(1.5 * pause_s, _MOST_PAUSE_S)
        self.end(name)
        return True

    def _lock(self, name: str, kind: int) -> bool:
        try:
            fcntl.lockf(self._file, kind | fcntl.LOCK_NB, 1, _byte(name))
        except (BlockingIOError, PermissionError):
            return False
        except OSError:
            return True
        return True


def _byte(name: str) -> int:
    return int(name[:12], 16)
