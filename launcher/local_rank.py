"""One rank as its agent knows it: its link, its process, and the stacks it was asked for."""

import contextlib
import signal
from dataclasses import dataclass
from pathlib import Path

from torch_xdist.launcher import linux
from torch_xdist.launcher.frames import Link

_MOST_STACK_BYTES = 1 << 16


@dataclass
class LocalRank:
    """`stacks` is the file into which the rank's faulthandler writes when it gets SIGUSR1."""

    rank: int
    link: Link
    stacks: Path
    program: bool = False
    pid: int = 0
    ended: bool = False
    stopped: bool = False
    _stacks_from: int = 0

    @property
    def is_up(self) -> bool:
        return bool(self.pid) and not self.ended

    def signal(self, number: int) -> None:
        """Send a signal to the rank's process group; from now on its end is our doing."""
        if not self.is_up:
            return
        self.stopped = True
        linux.kill_group(self.pid, number)
        if number != signal.SIGKILL:
            # A stopped process takes no signal but SIGKILL until it is continued.
            linux.kill_group(self.pid, signal.SIGCONT)

    def ask_stack(self) -> None:
        """Let it write the stacks of its threads. A program might die of the signal."""
        with contextlib.suppress(OSError):
            self._stacks_from = self.stacks.stat().st_size
        if self.is_up and not self.program:
            linux.kill(self.pid, signal.SIGUSR1)

    def read_stack(self) -> str:
        """What it wrote since it was asked; "" where it could not (stopped, or no Python)."""
        with contextlib.suppress(OSError), open(self.stacks, "rb") as file:
            file.seek(self._stacks_from)
            return file.read(_MOST_STACK_BYTES).decode(errors="replace")
        return ""
