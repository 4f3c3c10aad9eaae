"""A script whose job failed ends with the job's exit code, not with Python's 1."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

from torch_xdist.launcher.errors import LauncherError

Hook = Callable[[type[BaseException], BaseException, TracebackType | None], object]


def pass_on() -> None:
    """From now on a LauncherError that nobody catches ends this process with its `exit_code`.

    It is shown as before. An exception that a rank raised comes back as itself: its code is 1.
    """
    if not isinstance(sys.excepthook, _ShowAndExit):
        sys.excepthook = _ShowAndExit(sys.excepthook)


@dataclass(frozen=True)
class _ShowAndExit:
    """Calls the hook it replaces, then ends the process; others may be put before it again."""

    former: Hook

    def __call__(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        self.former(kind, error, trace)
        if isinstance(error, LauncherError):
            # The interpreter takes it from a hook as it takes it from a script: in good order.
            raise SystemExit(int(error.exit_code))
