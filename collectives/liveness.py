"""Is a process still there? Answered within microseconds, also for one that nobody reaped yet."""

import os
import select


class Process:
    """Another process, followed by a pidfd, so that a reused number is never mistaken for it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._poll: select.poll | None = None
        self._gone = False
        self._descriptor: int | None = None
        try:
            self._descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            self._gone = True
            return
        except (OSError, AttributeError):
            return  # a kernel without pidfds: /proc is asked each time
        self._poll = select.poll()
        self._poll.register(self._descriptor, select.POLLIN)

    def ended(self) -> bool:
        """Whether it has ended; a zombie has."""
        if not self._gone:
            self._gone = bool(self._poll.poll(0)) if self._poll else _missing(self.pid)
        return self._gone

    def close(self) -> None:
        """Give back the descriptor."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = self._poll = None


def _missing(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True
