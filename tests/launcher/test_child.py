"""A forked child as `subprocess.Popen` would show it."""

import os
import signal
import subprocess
import time

import pytest

from torch_xdist.launcher.child import Child


def forked(seconds: float, code: int) -> Child:
    pid = os.fork()
    if pid == 0:
        time.sleep(seconds)
        os._exit(code)
    return Child(pid)


def test_the_code_of_a_child_comes_when_it_has_ended() -> None:
    child = forked(0.2, 3)
    assert child.poll() is None
    assert child.wait(10) == 3 and child.poll() == 3 and child.wait() == 3


def test_waiting_for_a_child_has_a_limit_and_killing_an_end() -> None:
    child = forked(60, 0)
    with pytest.raises(subprocess.TimeoutExpired):
        child.wait(0.05)
    child.kill()
    assert child.wait(10) == -signal.SIGKILL
    child.kill()


def test_a_child_that_somebody_else_waited_for_has_ended() -> None:
    child = forked(0, 5)
    os.waitpid(child.pid, 0)
    assert child.poll() == 0
