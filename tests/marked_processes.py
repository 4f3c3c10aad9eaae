"""Processes of a test by a variable of theirs: afterwards none may be left."""

import contextlib
import subprocess
import time
from collections.abc import Iterator

from torch_xdist.system import process_tree

_GONE_S = 15.0


@contextlib.contextmanager
def none_left(kind: str) -> Iterator[tuple[str, list[subprocess.Popen[str]]]]:
    """The variable ("NAME=value") for what a test starts, and a list for that to be ended."""
    mark, started = f"XDIST_TEST_MARK={kind}{time.time_ns()}", list[subprocess.Popen[str]]()
    yield mark, started
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()
    assert_gone(mark)


def assert_gone(mark: str) -> None:
    """All that had the variable ("NAME=value") have ended, or do so soon."""
    end_s = time.monotonic() + _GONE_S
    while (alive := process_tree.marked(mark)) and time.monotonic() < end_s:
        time.sleep(0.05)
    assert alive == set()
