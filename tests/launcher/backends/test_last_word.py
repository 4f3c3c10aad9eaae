"""What an agent elsewhere reads when its head is killed, and when that only ends a connection."""

import os
import subprocess
import sys

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


def test_a_word_that_is_kept_back_is_an_end_alone() -> None:
    read, write = os.pipe()
    word = LastWord(write)
    os.close(write)
    word.keep_back()
    assert os.read(read, 100) == b""
    os.close(read)
