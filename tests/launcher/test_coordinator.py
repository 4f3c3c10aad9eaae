"""JAX's coordination service in its own process."""

import os
import signal
import socket
import subprocess
import sys
import time

from torch_xdist.launcher import linux

# In a process of its own: the service is forked, and this test process has threads.
_FORK = """
import os, sys
from torch_xdist.launcher import coordinator
print(coordinator.fork(sys.argv[1], 2), flush=True)
sys.stdin.read()
"""


def _fork(address: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", _FORK, address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_it_serves_and_dies_with_the_process_that_forked_it() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    nursery = _fork(address)
    assert nursery.stdout is not None
    pid = int(nursery.stdout.readline())
    assert pid > 0
    host, port = address.split(":")
    socket.create_connection((host, int(port)), timeout=5).close()
    nursery.kill()
    nursery.communicate()
    end_s = time.monotonic() + 5
    while linux.state(pid) not in ("", "Z"):
        assert time.monotonic() < end_s
        time.sleep(0.01)


def test_a_taken_port_is_told_and_leaves_no_process() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        nursery = _fork(f"127.0.0.1:{holder.getsockname()[1]}")
        assert nursery.stdout is not None
        assert int(nursery.stdout.readline()) == 0
        assert all(linux.state(pid) in ("", "Z") for pid in linux.children(nursery.pid))
        nursery.communicate("")


def test_a_stopped_process_shows_its_state() -> None:
    sleeper = subprocess.Popen(["sleep", "60"])
    os.kill(sleeper.pid, signal.SIGSTOP)
    end_s = time.monotonic() + 5
    while linux.state(sleeper.pid) != "T":
        assert time.monotonic() < end_s
        time.sleep(0.01)
    linux.kill_group(sleeper.pid, signal.SIGKILL)
    sleeper.wait()
    assert linux.state(sleeper.pid) == ""
    linux.kill(sleeper.pid, signal.SIGKILL)
