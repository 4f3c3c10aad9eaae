"""A script whose job failed ends with the job's exit code, not with Python's 1."""

import sys
from collections.abc import Callable
from types import TracebackType

from torch_xdist.launcher.errors import LauncherError

Hook = Callable[[type[BaseException], BaseException, TracebackType | None], object]
_former: list[Hook] = []


def pass_on() -> None:
    """From now on a LauncherError that nobody catches ends this process with its `exit_code`.

    It is shown as before. An exception that a rank raised comes back as itself: its code is 1.
    """
    if sys.excepthook is not _show_and_exit:
        _former[:] = [sys.excepthook]
        sys.excepthook = _show_and_exit


def _show_and_exit(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    _former[0](kind, error, trace)
    if isinstance(error, LauncherError):
        # The interpreter takes it from a hook as it takes it from a script: in good order.
        raise SystemExit(int(error.exit_code))
