"""A program at a terminal: its screen is read, or not, and keys are typed."""

import contextlib
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

CTRL_C, CTRL_D, CTRL_S, CTRL_Q, CTRL_Z = "\x03", "\x04", "\x13", "\x11", "\x1a"

# The terminal on stdin becomes that of the session: keys such as Ctrl-C are signals. Not done in a
# fork of this process (`preexec_fn`), in which gRPC, if a test used it, would start its threads.
_TAKE_TERMINAL = """
import os, sys
os.close(os.open(os.ttyname(0), os.O_RDWR))
os.execvp(sys.argv[1], sys.argv[1:])
"""


class Terminal:
    """A pseudo terminal with one program, as the leader of its session and its foreground."""

    def __init__(self, words: Sequence[str], folder: Path, environ: Mapping[str, str]) -> None:
        self._ours, theirs = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-c", _TAKE_TERMINAL, *words],
            cwd=folder,
            env=dict(environ),
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        self.shown = self.everything = ""

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def read(self, limit_s: float = 0.0) -> bool:
        """Read what is there, or comes in time; False at the end of the program."""
        if not select.select([self._ours], [], [], limit_s)[0]:
            return True
        try:
            data = os.read(self._ours, 1 << 16)
        except OSError:
            return False
        self.shown += data.decode(errors="replace")
        self.everything += data.decode(errors="replace")
        return bool(data)

    def wait_for(self, text: str, limit_s: float = 60.0) -> None:
        """Read until this is shown; what was shown before it does not count again."""
        end_s = time.monotonic() + limit_s
        while text not in self.shown:
            assert time.monotonic() < end_s, f"{text!r} was not shown: {self.shown!r}"
            assert self.read(0.2) or text in self.shown, f"ended before {text!r}: {self.shown!r}"
        self.shown = self.shown.partition(text)[2]

    def read_to_the_end(self, limit_s: float = 60.0) -> str:
        """All that is shown from now on; the program ends in time."""
        end_s = time.monotonic() + limit_s
        while self.read(0.2):
            assert time.monotonic() < end_s, f"still running: {self.shown!r}"
        return self.shown

    def close(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self._ours)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@contextlib.contextmanager
def terminal(words: Sequence[str], folder: Path, environ: Mapping[str, str]) -> Iterator[Terminal]:
    """A terminal that is closed in the end."""
    made = Terminal(words, folder, environ)
    try:
        yield made
    finally:
        made.close()
