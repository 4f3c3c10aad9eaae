"""Programs on three pipes: started, or not, and what they said last."""

import os
import time

import pytest

from torch_xdist.system import piped


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_a_program_has_its_three_streams_on_pipes_and_a_session_of_its_own() -> None:
    before = open_files()
    words = ["sh", "-c", 'read a; echo "out $a"; echo err >&2; test "$X" = y; exit $?']
    started = piped.start(words, {"X": "y", "PATH": os.environ["PATH"]})
    assert os.getsid(started.process.pid) == started.process.pid
    os.write(started.stdin, b"given\n")
    os.close(started.stdin)
    with os.fdopen(started.stdout, "rb") as out:
        assert out.read() == b"out given\n"
    assert piped.last_words(started.stderr, 100, 5.0) == b"err\n"
    assert started.process.wait(5.0) and started.process.code == 0
    started.process.close()
    assert open_files() == before


def test_nothing_is_left_open_of_a_program_that_is_not_there() -> None:
    before = open_files()
    with pytest.raises(FileNotFoundError):
        piped.start(["/no/such/program"])
    assert open_files() == before


def test_a_grandchild_that_keeps_the_pipe_open_is_not_waited_for() -> None:
    started = piped.start(["sh", "-c", "echo last words >&2; exec 1>&-; sleep 30 & exit 1"])
    assert started.process.wait(5.0)
    began_s = time.monotonic()
    assert piped.last_words(started.stderr, 100, 0.2) == b"last words\n"
    assert time.monotonic() - began_s < 5.0
    started.process.kill(group=True)
    os.killpg(started.process.pid, 9)
    os.close(started.stdin)
    os.close(started.stdout)
    started.process.close()


def test_no_more_is_read_than_was_asked_for() -> None:
    started = piped.start(["sh", "-c", "echo 0123456789 >&2"])
    assert piped.last_words(started.stderr, 4, 5.0) == b"0123"
    assert started.process.wait(5.0)
    os.close(started.stdin)
    os.close(started.stdout)
    started.process.close()
