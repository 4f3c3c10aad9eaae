"""A host whose disk is full, before a job or while it runs there: the job goes on, and it is told
which host it is, where, what is free, and what to do.
"""

import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pod import Pod, PodHost

from torch_xdist.system import process_tree

TWO = ("--hosts", "a,b", "-n", "1")
# Not where the tests keep theirs, which all hosts see.
THERE = ("--env", "XLA_RUN_STATE_DIR=/tmp/own")
WRITES = """
    for number in range(300):
        print("y" * 1000)
    print("done", RANK)
"""
TOLD = (
    r"^warning: host b: log directory (\S+): No space left on device \((\d+) bytes free\); the job "
    "goes on, output is lost there until there is room; remove what else lies there, or name "
    "another place by --log-dir$"
)


def on(host: PodHost, script: str) -> None:
    """Run a script of the shell on a host."""
    (first,) = process_tree.children(host._process.pid)  # type: ignore[union-attr]
    words = ["nsenter", "-t", str(first), "-m", "-u", "-i", "-n", "-p", "--", "sh", "-c", script]
    done = subprocess.run(words, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def small(pod: Pod) -> Iterator[str]:
    """A place for logs that has 128 KB on host b, and more on host a."""
    on(pod.hosts["b"], "mkdir -p /tmp/small && mount -t tmpfs -o size=128k tmpfs /tmp/small")
    yield "/tmp/small"
    on(pod.hosts["b"], "umount /tmp/small")
    # The launcher has kept its own record under that name, too.
    shutil.rmtree("/tmp/small")


@pytest.fixture
def full(pod: Pod) -> Iterator[None]:
    """The whole /tmp of host b takes no byte more."""
    room = "mount -o remount,size=$(($(df -k --output=used /tmp | tail -1) + 64))k /tmp"
    on(pod.hosts["b"], f"{room}; dd if=/dev/zero of=/tmp/fill bs=4k 2> /dev/null; true")
    yield
    on(pod.hosts["b"], "rm /tmp/fill; mount -o remount,size=50% /tmp")
    shutil.rmtree("/tmp/own")


def goes_on(ended: Any) -> re.Match[str]:
    """Its one warning."""
    assert ended.code == 0, ended.err
    assert ended.out.count("\n[b/1] done 1\n") == ended.out.count("\n[a/0] done 0\n") == 1
    assert ended.err.count("warning: ") == 1, ended.err
    found = re.search(TOLD, ended.err, re.MULTILINE)
    assert found is not None and int(found[2]) < 8192, ended.err
    return found


def test_a_disk_that_fills_up_on_one_host_ends_no_job_and_is_told_with_its_host(
    on_hosts: Callable, small: str
) -> None:
    found = goes_on(on_hosts(WRITES, *TWO, "--log-dir", small).end())
    assert found[1].startswith("/tmp/small/")


@pytest.mark.usefixtures("full")
def test_a_disk_that_is_full_before_the_job_ends_none_and_is_told_with_its_host(
    on_hosts: Callable,
) -> None:
    found = goes_on(on_hosts(WRITES, *TWO, *THERE).end())
    assert found[1].startswith("/tmp/own/")


@pytest.mark.usefixtures("full")
def test_a_rank_that_fails_on_a_host_with_a_full_disk_is_named_with_its_error(
    on_hosts: Callable,
) -> None:
    body = "if RANK: raise ValueError('of 1')\ntime.sleep(60)"
    ended = on_hosts(body, *TWO, *THERE).end()
    assert ended.code == 1
    assert re.search(r"xla-run: rank 1 \(host b, pid \d+\) raised ValueError: of 1\n", ended.err)
