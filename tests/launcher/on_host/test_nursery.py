"""The process that the ranks are forked from: no rank misses a signal that is meant for it."""

import signal
import subprocess
import sys

import pytest

# A nursery that forks one rank, which dawdles before it has signal handlers of its own.
FORKS = """
import os, signal, socket, sys, time
from torch_xdist.launcher.on_host import nursery
from torch_xdist.system.frames import Link

def dawdle(kept):
    os.write(said, b"x")
    time.sleep(1)

for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, signal.SIG_IGN)
heard, said = os.pipe()
nursery._own_streams = lambda log, stdin: None
nursery.process_tree.close_all_but = dawdle
ours, theirs = socket.socketpair()
made = nursery.Nursery(Link(theirs), "X=y", frozenset())
task = {"kind": "program", "argv": ["sleep", "60"]}
made._orders = {"env_of_all": {}, "env": {}, "cwd": "/", "task": task}
made._start({"rank": 0}, os.dup(0), os.dup(0), os.dup(0))
assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == set()
os.read(heard, 1)
(pid,) = made._ranks
os.kill(pid, int(sys.argv[1]))
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, -signal.SIGTERM), (signal.SIGINT, 130)]
)
def test_a_signal_to_a_rank_that_has_just_been_forked_is_not_lost(number: int, code: int) -> None:
    words = [sys.executable, "-c", FORKS, str(int(number))]
    done = subprocess.run(
        words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=40
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == code and "Traceback" not in done.stderr


# A coordinator that is up before the nursery looks for the first time.
AT_ONCE = """
import os, socket
from torch_xdist.launcher.on_host import nursery
from torch_xdist.system.frames import Link

class Up:
    def __init__(self, host, world_size):
        self.ready, said = os.pipe()
        os.write(said, b"x")
    def fileno(self):
        return self.ready
    def left_s(self):
        return 9.0
    def address(self):
        return "h:1"

nursery.CoordinatorStart = Up
ours, theirs = socket.socketpair()
agent = Link(ours)
agent.send({"op": "coordinate", "host": "h", "world_size": 2})
made = nursery.Nursery(Link(theirs), "X=y", frozenset())
ours.shutdown(socket.SHUT_WR)
made.serve()
print([frame.message["op"] for frame in agent.read_ready()[0]])
"""


def test_a_coordinator_that_is_up_at_once_is_told() -> None:
    words = [sys.executable, "-c", AT_ONCE]
    done = subprocess.run(words, capture_output=True, text=True, timeout=40)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "['ready', 'coordinator']"
