"""Trees of processes: who is below, and a sweep that leaves nobody."""

import os
import signal
import subprocess
import sys
import uuid

import pytest

from torch_xdist.system import process, process_tree
from torch_xdist.system.process import Child

# Each starts others that leave its session; the last says where they are.
FAMILY = """
import os, subprocess, sys, time
plain = subprocess.Popen(["sleep", "600"], start_new_session=True)
bare = subprocess.Popen(["sleep", "600"], start_new_session=True, env={})
print(plain.pid, bare.pid, flush=True)
time.sleep(600)
"""


def family(mark: str) -> tuple[Child, list[int]]:
    name, value = mark.split("=")
    parent = Child.start(
        [sys.executable, "-S", "-c", FAMILY],
        env={**os.environ, name: value},
        stdout=subprocess.PIPE,
    )
    assert parent._popen is not None and parent._popen.stdout is not None
    with parent._popen.stdout as told:
        return parent, [int(word) for word in told.readline().split()]


def test_a_sweep_kills_the_marked_and_the_descendants_and_nobody_else():
    mark = f"SWEPT={uuid.uuid4().hex}"
    parent, below = family(mark)
    stranger, strangers_below = family(f"OTHER={uuid.uuid4().hex}")
    assert process_tree.marked(mark) == {parent.pid, below[0]}
    assert process_tree.descendants(parent.pid) == set(below)
    assert process_tree.sweep(mark, keep=(), roots=[parent.pid]) == 3
    assert process_tree.marked(mark) == set()
    assert {process.state(pid) for pid in below} <= {"Z", ""}
    assert not stranger.ended()
    assert process_tree.children(stranger.pid) == strangers_below
    for child in (parent, stranger):
        process_tree.sweep("no=mark", keep=(), roots=[child.pid])
        child.kill()
        child.wait()
        child.close()


def test_a_sweep_spares_whom_it_is_told_to_keep():
    mark = f"SWEPT={uuid.uuid4().hex}"
    parent, below = family(mark)
    assert process_tree.sweep(mark, keep={parent.pid, below[1]}, roots=[parent.pid]) == 1
    assert process.state(below[0]) in ("Z", "")
    assert {process.state(parent.pid), process.state(below[1])} <= {"S", "R", "D"}
    assert process_tree.sweep(mark, keep=(), roots=[parent.pid]) == 2
    parent.wait()
    parent.close()


def test_a_sweep_overtakes_processes_that_fork_while_it_kills():
    mark = f"SWEPT={uuid.uuid4().hex}"
    name, value = mark.split("=")
    # A chain of 200, each a child of the one before and a session of its own.
    forks = (
        "import os, time\nfor _ in range(200):\n  if os.fork(): break\n"
        "  os.setsid(); time.sleep(0.002)\ntime.sleep(600)"
    )
    parent = Child.start([sys.executable, "-S", "-c", forks], env={**os.environ, name: value})
    while len(process_tree.marked(mark)) < 3:
        assert not parent.ended()
    process_tree.sweep(mark, keep=(), limit_s=10)
    assert process_tree.marked(mark) == set()
    parent.wait()
    parent.close()


SWEEPS_WITH_FEW_DESCRIPTORS = """
import os, resource, subprocess, sys
from torch_xdist.system import process_tree
alone = {"env": {"SWEPT": sys.argv[1]}, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
below = [subprocess.Popen(["/bin/sleep", "600"], **alone) for _ in range(20)]
left = len(os.listdir("/proc/self/fd")) - 1 + int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_NOFILE, (left, left))
print(process_tree.sweep("SWEPT=" + sys.argv[1], keep=()))
"""


@pytest.mark.parametrize("free", [2, 5, 19, 40])
def test_a_sweep_makes_do_with_the_descriptors_that_are_left(free: int):
    mark = uuid.uuid4().hex
    command = [sys.executable, "-c", SWEEPS_WITH_FEW_DESCRIPTORS, mark, str(free)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    survivors = process_tree.sweep(f"SWEPT={mark}", keep=())
    assert (ended.stdout, ended.stderr, survivors) == ("20\n", "", 0)


DIES_WITH_PARENT = """
import os, sys, time
from torch_xdist.system import process, process_tree
if os.fork():
    time.sleep(600)
process_tree.die_with_parent()
print(os.getpid(), flush=True)
time.sleep(600)
"""


def test_a_process_that_dies_with_its_parent_is_adopted_and_reaped():
    process_tree.adopt_orphans()
    parent = Child.start([sys.executable, "-c", DIES_WITH_PARENT], stdout=subprocess.PIPE)
    assert parent._popen is not None and parent._popen.stdout is not None
    with parent._popen.stdout as told:
        below = Child(int(told.readline()))
    parent.kill()
    parent.wait()
    assert below.wait(5)
    assert below.code in (-signal.SIGKILL, None)
    for child in (parent, below):
        child.close()


def test_every_child_that_has_ended_is_reaped_once():
    pid = os.posix_spawnp("sh", ["sh", "-c", "exit 3"], os.environ)
    with Child(pid) as held:
        super(Child, held).wait(5)
    assert (pid, 3) in process_tree.reap()
    assert process_tree.reap() == []


def test_all_descriptors_but_the_kept_are_closed():
    code = (
        "import os; from torch_xdist.system import process_tree\n"
        "kept, other = os.dup(0), os.dup(0)\n"
        "process_tree.close_all_but({0, 1, 2, kept})\n"
        "assert set(map(int, os.listdir('/proc/self/fd'))) >= {0, 1, 2, kept}\n"
        "try: os.fstat(other)\n"
        "except OSError: pass\n"
        "else: raise SystemExit('still open')"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
