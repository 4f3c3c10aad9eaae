"""The agent of a host: what it says of its own failure, and the limits that are its own."""

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from unittest.mock import Mock

import pytest

from torch_xdist.launcher.on_host.agent import Agent
from torch_xdist.launcher.on_host.head_stream import SocketToHead
from torch_xdist.launcher.on_host.started_rank import StartedRank
from torch_xdist.system.frames import Frame, Link
from torch_xdist.system.process import Child

MANY = ("--nprocs", "24")


def limited(options: str) -> tuple[str, ...]:
    """Before a command: it may open so many files."""
    return ("bash", "-c", f'ulimit {options} && exec "$@"', "-")


def test_an_agent_that_may_not_open_enough_files_says_so(start: Callable) -> None:
    ended = start("print('ran')", *MANY, before=limited("-n 64")).end()
    assert ended.code == 70, ended.err
    assert "the agent failed:" in ended.err and "Too many open files" in ended.err


def test_the_soft_limit_of_open_files_holds_for_the_ranks_and_not_for_their_agent(
    start: Callable,
) -> None:
    body = "import resource; print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])"
    ended = start(body, *MANY, before=limited("-S -n 64")).end()
    assert ended.code == 0, ended.err
    assert sorted(ended.out.splitlines()) == sorted(f"[{rank}] 64" for rank in range(24))


def test_an_order_to_start_that_comes_after_the_stop_starts_nothing() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, Child.start([sys.executable, "-c", ""]) as nursery:
        agent = Agent("XLA_RUN_MARK=x", nursery, Link(ours), SocketToHead(theirs))
        agent._stop_signal = signal.SIGTERM
        agent._obey({"op": "start", "ranks": [{"rank": 0}]}, b"")
        assert not agent._ranks and not agent._held
        nursery.wait()


SAVES = """
import signal, sys, time
def save(number, frame):
    print("saved")
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("on", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize(("grace_s", "code"), [(20.0, 0), (0.0, -signal.SIGKILL)])
def test_a_rank_whose_start_is_told_after_the_stop_may_save_like_the_others(
    grace_s: float, code: int
) -> None:
    # The nursery forks it and tells of it afterwards: on a busy machine much later.
    ours, theirs = socket.socketpair()
    to_agent, to_rank = socket.socketpair()
    nursery_process = Child.start([sys.executable, "-c", ""])
    rank_process = subprocess.Popen([sys.executable, "-c", SAVES], stdout=subprocess.PIPE)
    with ours, theirs, to_agent, to_rank, nursery_process as nursery, rank_process as process:
        assert process.stdout is not None and process.stdout.readline() == b"on\n"
        agent = Agent("XLA_RUN_MARK=x", nursery, Link(ours), SocketToHead(theirs))
        agent._held, agent._next_beat_s = None, time.monotonic() + 60
        agent._stream = Mock()
        agent._ranks[0] = StartedRank(0, Link(to_agent), -1)
        agent._stop(signal.SIGTERM, grace_s)
        agent._keep_time()
        agent._hear(Frame({"op": "started", "rank": 0, "pid": process.pid}))
        assert process.wait(10) == code
        assert process.stdout.read() == (b"saved\n" if code == 0 else b"")


def test_the_traceback_stands_in_the_log_behind_what_the_rank_has_printed(start: Callable) -> None:
    # More than is read at once; the news of the error come over another way, and sooner.
    body = "os.write(1, (b'x' * 99 + b'\\n') * 9000); raise ValueError('bad batch')"
    ended = start(body, "--nprocs", "1", "--log-dir", "logs", "--tee", "none").end()
    assert ended.code == 1
    log = next(ended.folder.glob("logs/*/attempt-0/rank-*.log"))
    assert log.read_text().rstrip().endswith("ValueError: bad batch")
