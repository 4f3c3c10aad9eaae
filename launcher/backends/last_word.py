"""What tells an agent elsewhere that its head has died, though it was killed and can say nothing.

The end of ssh's stdin looks there as the end of a connection does, which is waited for. So a shell
beside each connection keeps that stdin open until the head is gone, and then writes to it that it
is. The kernel wakes it: it reads a pipe whose other end only the head has.
"""

import contextlib
import os
import threading

from torch_xdist.launcher.connection import LAST_WORD
from torch_xdist.system.process import Child

_WORD = "".join(f"\\{byte:03o}" for byte in LAST_WORD)
# The pipe is one that does not wait, and may be full: opened anew it waits until there is room.
_SCRIPT = f"read -r _; printf '{_WORD}' 2>/dev/null >/proc/self/fd/1 || printf '{_WORD}'"
_turn = threading.Lock()
_life: list[int] = []


class LastWord:
    """Of one connection.

    Args:
        stdin: of the program that carries it; where no shell can be started there is none.
    """

    def __init__(self, stdin: int) -> None:
        self._process: Child | None = None
        with contextlib.suppress(OSError):
            self._process = Child.start(
                ["sh", "-c", _SCRIPT],
                stdin=_life_of_this_process(),
                stdout=stdin,
                start_new_session=True,
            )

    def keep_back(self) -> None:
        """Say nothing any more; what carries the connection sees the end of its stdin."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process.close()
            self._process = None


def _life_of_this_process() -> int:
    """What ends with this process; never closed before."""
    with _turn:
        if not _life:
            _life.extend(os.pipe2(os.O_CLOEXEC))
        return _life[0]
