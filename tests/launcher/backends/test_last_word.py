"""What an agent elsewhere reads when its head is killed, and when that only ends a connection."""

import os
import subprocess
import sys
import textwrap
import time

from torch_xdist.launcher.backends.last_word import LastWord
from torch_xdist.launcher.connection import LAST_WORD

_HEAD = """
import os, signal
from torch_xdist.launcher.backends.last_word import LastWord
LastWord(1)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_head_that_is_killed_has_a_last_word() -> None:
    done = subprocess.run([sys.executable, "-c", _HEAD], stdout=subprocess.PIPE, timeout=30)
    assert done.returncode < 0 and done.stdout == LAST_WORD


def test_the_last_word_comes_behind_what_fills_the_pipe() -> None:
    fills = """
    os.set_blocking(1, False)
    try:
        while True:
            os.write(1, b"x" * 4096)
    except BlockingIOError:
        pass
    """
    head = _HEAD.replace("LastWord(1)", "LastWord(1)" + textwrap.dedent(fills))
    with subprocess.Popen([sys.executable, "-c", head], stdout=subprocess.PIPE) as process:
        process.wait(30)
        # The shell has found the pipe full by now, if it is ever to.
        time.sleep(0.5)
        assert process.stdout.read().endswith(b"x" + LAST_WORD)


def test_a_word_that_is_kept_back_is_an_end_alone() -> None:
    read, write = os.pipe()
    word = LastWord(write)
    os.close(write)
    word.keep_back()
    assert os.read(read, 100) == b""
    os.close(read)
