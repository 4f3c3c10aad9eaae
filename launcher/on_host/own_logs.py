"""Where a host that is not its head's keeps the logs of a job, below a folder of its own.

The head of a local job sees to its log folder itself; here the agent does: it makes the place, lets
no other user write there, marks the folder while the job runs, and removes the oldest ones.
"""

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path

from torch_xdist.launcher.facts import log_folders, registry
from torch_xdist.launcher.facts.errors import PreflightError
from torch_xdist.launcher.facts.log_folders import LogFolder

# A disk that hangs holds up nobody for longer.
_LIMIT_S = 5.0


def why_not(root: Path) -> str:
    """Make the place; why it cannot be used, "" where it can."""
    said: list[str] = []

    def make() -> None:
        try:
            registry.private_dir(registry.private_dir(root.parent) / root.name)
            said.append("")
        except PreflightError as error:
            said.append(str(error))

    _at_most(_LIMIT_S, make)
    return said[0] if said else f"{root} does not answer"


class OwnLogs:
    """The log folder of one job.

    Args:
        log_dir: ROOT/JOB/attempt-N.
    """

    def __init__(self, log_dir: Path) -> None:
        self._root, self._job_id = log_dir.parent.parent, log_dir.parent.name
        self._folder: LogFolder | None = None
        _at_most(_LIMIT_S, self._enter)

    def _enter(self) -> None:
        self._folder = LogFolder(self._root, self._job_id, fresh=False)

    def close(self) -> None:
        """The job is over here; the oldest logs go."""
        _at_most(_LIMIT_S, self._leave)

    def _leave(self) -> None:
        if self._folder is not None:
            self._folder.close()
            log_folders.prune(self._root)


def _at_most(limit_s: float, action: Callable[[], None]) -> None:
    """Do it on a thread, and wait no longer; a disk that fails is told of by the log files."""

    def run() -> None:
        with contextlib.suppress(OSError):
            action()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(limit_s)
