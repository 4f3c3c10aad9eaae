"""A rank as its agent knows it: signals, stacks, and the watch for out of memory."""

import os
import signal
import socket
import subprocess
import sys

import pytest

from torch_xdist.launcher.facts.settings import STACK_SIGNAL
from torch_xdist.launcher.on_host.started_rank import OomWatch, StartedRank
from torch_xdist.system.frames import Link
from torch_xdist.system.process import Child


def made(root, cgroup, folder, **files):
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(cgroup)
    place = root / "sys/fs/cgroup" / folder
    place.mkdir(parents=True)
    for name, text in files.items():
        (place / name.replace("__", ".")).write_text(text)
    return place


@pytest.mark.parametrize(
    ("cgroup", "folder", "name", "text"),
    [
        ("0::/job/a\n", "job/a", "memory__events", "low 0\nmax 3\noom 1\noom_kill {}\n"),
        ("0::/hidden/path\n", ".", "memory__events", "oom_kill {}\n"),
        (
            "9:memory:/job\n1:name=systemd:/x\n",
            "memory/job",
            "memory__oom_control",
            "oom_kill_disable 0\nunder_oom 0\noom_kill {}\n",
        ),
    ],
)
def test_a_kill_is_seen_once(tmp_path, cgroup, folder, name, text):
    place = made(tmp_path, cgroup, folder, **{name: text.format(2)})
    watch = OomWatch(root=tmp_path)
    assert not watch.killed()
    (place / name.replace("__", ".")).write_text(text.format(3))
    assert watch.killed()
    assert not watch.killed()


def test_without_cgroups_nothing_is_out_of_memory(tmp_path):
    watch = OomWatch(root=tmp_path)
    assert not watch.killed()


def test_a_real_process_can_be_watched():
    assert not OomWatch().killed()


@pytest.fixture
def started():
    """`started(code)`: a rank that runs this Python, in a session of its own; it has printed."""
    made_here = []

    def start(code, program=False):
        stacks = os.memfd_create("stacks")
        process = Child.start(
            [sys.executable, "-c", code, str(stacks)],
            start_new_session=True,
            stdout=subprocess.PIPE,
            pass_fds=[stacks],
        )
        ours, theirs = socket.socketpair()
        theirs.close()
        rank = StartedRank(0, Link(ours), stacks, program=program, process=process)
        made_here.append(rank)
        rank.said = process._popen.stdout.readline().decode().strip()
        return rank

    yield start
    for rank in made_here:
        rank.process.signal_group(signal.SIGKILL)
        rank.process.wait()
        rank.process._popen.stdout.close()
        rank.close()


# The child of the rank says whether it gets the signal.
WITH_WORKER = """
import os, signal, subprocess, sys, time
worker = subprocess.Popen(["sleep", "600"])
def save(*_):
    time.sleep(0.3)
    sys.exit(10 + (worker.poll() is None))
signal.signal(signal.SIGTERM, save)
print("up", flush=True)
while True: time.sleep(0.1)
"""


@pytest.mark.parametrize(("program", "code"), [(False, 11), (True, 10)])
def test_the_workers_of_a_rank_outlive_its_signal_and_those_of_a_program_do_not(
    started, program, code
):
    rank = started(WITH_WORKER, program)
    rank.signal(signal.SIGTERM)
    assert rank.stopped
    assert rank.process.wait(10) and rank.process.code == code


def test_a_kill_takes_the_workers_along(started):
    code = WITH_WORKER.replace('"up"', "worker.pid")
    rank = started(code)
    with Child(int(rank.said)) as worker:
        rank.signal(signal.SIGKILL)
        assert rank.process.wait(10) and super(Child, worker).wait(10)


def test_a_stopped_rank_gets_its_signal(started):
    rank = started(WITH_WORKER)
    rank.process.signal(signal.SIGSTOP)
    rank.signal(signal.SIGTERM)
    assert rank.process.wait(10) and rank.process.code == 11


STACKS = """
import faulthandler, os, signal, sys, time
{how}
def deep_inside():
    print("up", flush=True)
    time.sleep(600)
deep_inside()
"""


def test_a_rank_with_a_handler_writes_its_stacks(started):
    how = f"faulthandler.register({int(STACK_SIGNAL)}, file=int(sys.argv[1]), all_threads=True)"
    rank = started(STACKS.format(how=how))
    for _ in range(2):
        rank.ask_stack()
        while "deep_inside" not in rank.read_stack():
            assert not rank.process.wait(0.01)
    assert rank.read_stack().count("deep_inside") == 1, "only what it wrote since it was asked"


@pytest.mark.parametrize("number", [int(STACK_SIGNAL), int(signal.SIGUSR1)])
def test_a_rank_without_a_handler_for_the_stacks_does_not_die_of_them(started, number):
    rank = started(STACKS.format(how=f"signal.signal({number}, signal.SIG_DFL)"))
    rank.ask_stack()
    assert not rank.process.wait(0.3)
    assert rank.read_stack() == ""
