"""The backend for this machine: one agent, started as a child, its orders on its stdin."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import IO

from torch_xdist.launcher.child import Child
from torch_xdist.launcher.frames import Message, encode


class LocalAgent:
    """The agent process of this host."""

    host = "127.0.0.1"

    def __init__(self, job_id: str, warmth: str, env: Mapping[str, str]) -> None:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "torch_xdist.launcher.agent", job_id, warmth],
            stdin=subprocess.PIPE,
            env={**os.environ, **env},
            # A Ctrl-C on the terminal is for the launcher, which then tells the agents.
            start_new_session=True,
        )
        assert process.stdin is not None
        self._take(process, process.stdin)

    @classmethod
    def forked(cls, pid: int, stdin: int) -> "LocalAgent":
        """The agent that `inherit` has started as child `pid` of this process."""
        agent = cls.__new__(cls)
        agent._take(Child(pid), open(stdin, "wb"))  # noqa: SIM115
        return agent

    def _take(self, process: "subprocess.Popen[bytes] | Child", stdin: IO[bytes]) -> None:
        self._process, self._stdin = process, stdin
        self.pid = process.pid

    def configure(self, message: Message) -> None:
        """Tell it where the controller is. The token travels here: no other process can read it."""
        with contextlib.suppress(BrokenPipeError):
            self._stdin.write(encode(message))
            self._stdin.flush()

    def end(self, limit_s: float = 5.0) -> None:
        """Close its stdin, which ends it, and wait; kill it when it does not."""
        with contextlib.suppress(BrokenPipeError):
            self._stdin.close()
        try:
            self._process.wait(limit_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def poll(self) -> int | None:
        return self._process.poll()
