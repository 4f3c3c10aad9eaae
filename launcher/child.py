"""A child process that was not started through `subprocess`: to be waited for, and killed."""

import os
import select
import signal
import subprocess

from torch_xdist.launcher import linux


class Child:
    """What the launcher needs of `subprocess.Popen`, for a child that was forked."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Its exit code, -n for signal n; None while it lives."""
        if self.returncode is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:
                # Somebody has waited for every child of this process.
                pid, status = self.pid, 0
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, limit_s: float | None = None) -> int:
        """Its exit code, once it has ended.

        Raises:
            subprocess.TimeoutExpired: it lives after `limit_s`.
        """
        if self.poll() is None:
            pidfd = os.pidfd_open(self.pid)
            try:
                ended, _, _ = select.select([pidfd], [], [], limit_s)
            finally:
                os.close(pidfd)
            if not ended:
                raise subprocess.TimeoutExpired(f"process {self.pid}", limit_s or 0.0)
            self.poll()
        return self.returncode or 0

    def kill(self) -> None:
        if self.returncode is None:
            linux.kill(self.pid, signal.SIGKILL)
