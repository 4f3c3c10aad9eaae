"""The backend for this machine: one agent, started as a child, its orders on its stdin."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Mapping

from torch_xdist.launcher.frames import Message, encode


class LocalAgent:
    """The agent process of this host."""

    host = "127.0.0.1"

    def __init__(self, job_id: str, warmth: str, env: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "torch_xdist.launcher.agent", job_id, warmth],
            stdin=subprocess.PIPE,
            env={**os.environ, **env},
            # A Ctrl-C on the terminal is for the launcher, which then tells the agents.
            start_new_session=True,
        )
        self.pid = self._process.pid

    def configure(self, message: Message) -> None:
        """Tell it where the controller is. The token travels here: no other process can read it."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(encode(message))
            self._process.stdin.flush()

    def end(self, limit_s: float = 5.0) -> None:
        """Close its stdin, which ends it, and wait; kill it when it does not."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(limit_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def poll(self) -> int | None:
        return self._process.poll()
