"""JAX's coordination service in its own process, and the port it is given."""

import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from torch_xdist.launcher.on_host import coordinator
from torch_xdist.system import process, process_tree

# In a process of its own: the service is forked, and this test process has threads.
_START = """
import select, sys
from torch_xdist.launcher.on_host import coordinator
taken = [int(port) for port in sys.argv[1:]]
real = coordinator.free_port
coordinator.free_port = lambda host: taken.pop() if taken else real(host)
starting = coordinator.CoordinatorStart("127.0.0.1", 2)
address = ""
while address == "":
    select.select([starting], [], [], starting.left_s())
    address = starting.address()
print(address, starting._child.pid, flush=True)
sys.stdin.read()
"""


def start(*taken: int) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", _START, *map(str, taken)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def connects(address: str) -> bool:
    host, port = address.split(":")
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except ConnectionRefusedError:
        return False
    return True


def test_it_serves_and_dies_with_the_process_that_forked_it() -> None:
    nursery = start()
    assert nursery.stdout is not None
    address, pid = nursery.stdout.readline().split()
    assert connects(address)
    nursery.kill()
    nursery.communicate()
    with process.Process(int(pid)) as service:
        assert service.wait(5)
    assert not connects(address)


@pytest.fixture
def taken():
    """A port that somebody listens on."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        yield holder.getsockname()[1]


def test_where_the_port_was_taken_another_one_is_used(taken: int) -> None:
    nursery = start(taken, taken)
    assert nursery.stdout is not None
    address, pid = nursery.stdout.readline().split()
    assert address != f"127.0.0.1:{taken}" and connects(address)
    assert process_tree.children(nursery.pid) == [int(pid)], "the others are gone"
    nursery.communicate("")


def test_five_taken_ports_are_the_end_and_leave_no_process(taken: int) -> None:
    nursery = start(*[taken] * 5)
    assert nursery.stdout is not None
    assert nursery.stdout.readline().split()[0] == "None"
    assert process_tree.children(nursery.pid) == []
    nursery.communicate("")


def test_ports_are_free_and_none_that_the_kernel_gives_to_clients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    for _ in range(50):
        port = coordinator.free_port()
        assert not first <= port <= last and port < 65535
    everything = tmp_path / "range"
    everything.write_text("1024 65535")
    monkeypatch.setattr(coordinator, "_CLIENT_PORTS", everything)
    assert coordinator.free_port() > 0


def test_a_service_that_does_not_come_up_in_time_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    code = _START.replace(
        'CoordinatorStart("127.0.0.1", 2)', 'CoordinatorStart("127.0.0.1", 2, limit_s=0.1)'
    ).replace("taken = ", "coordinator.serve = lambda *_: __import__('time').sleep(600)\ntaken = ")
    began_s = time.monotonic()
    nursery = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert nursery.stdout is not None
    assert nursery.stdout.readline().split()[0] == "None"
    assert process_tree.children(nursery.pid) == []
    assert time.monotonic() - began_s < 30
    nursery.communicate("")
