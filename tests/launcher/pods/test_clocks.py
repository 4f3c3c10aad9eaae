"""Hosts whose time of day differs by hours: nothing is decided by it, and logs go by the head's.

Host b runs Pythons whose `time.time` is ahead or behind, agents and ranks alike; what is written
in C sees the one time of day that the kernel has for all hosts here.
"""

import sys
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from pod_nodes import TwoHosts

SOON = ("--lost-after", "2", "--beat-every", "0.5")
HOURS = pytest.mark.parametrize("hours", [-3, 26])
CLOCK = """
import socket, time
if socket.gethostname() == "b":
    right, right_ns = time.time, time.time_ns
    time.time = lambda: right() + SECONDS
    time.time_ns = lambda: right_ns() + SECONDS * 10**9
"""


def clock_of(tmp_path: Path, hours: int) -> str:
    """A folder for PYTHONPATH by which the clock of host b is ahead."""
    folder = tmp_path / "clock"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(CLOCK.replace("SECONDS", str(hours * 3600)))
    return str(folder)


@pytest.fixture
def skewed(on_hosts: Callable, tmp_path: Path) -> Callable[..., Any]:
    """`skewed(hours, body, *options)`: a rank on each of two hosts, whose clocks differ."""

    def begin(hours: int, body: str, *options: str) -> Any:
        folder = clock_of(tmp_path, hours)
        python = tmp_path / "python"
        python.write_text(f'#!/bin/sh\nPYTHONPATH={folder} exec {sys.executable} "$@"\n')
        python.chmod(0o755)
        two = ("--hosts", "a,b", "-n", "1", "--python", str(python))
        return on_hosts(body, *two, *options, env={"PYTHONPATH": folder})

    return begin


def differ_by(folder: Path, hours: int) -> None:
    """The clocks that the ranks have seen."""
    first, last = (float((folder / f"clock{rank}").read_text()) for rank in range(2))
    assert last - first == pytest.approx(hours * 3600, abs=60)


def test_hosts_whose_time_of_day_differs_work_together(skewed: Callable) -> None:
    body = """
        import torch, torch_xla, torch_xla.core.xla_model as xm
        say("clock%d" % RANK, time.time())
        for _ in range(3):
            total = xm.all_reduce("sum", torch.ones(1, device="xla")).item()
            time.sleep(1)
        print("sum", total)
    """
    ended = skewed(-3, body, *SOON).end()
    assert ended.code == 0 and ended.out.count("sum 2.0\n") == 2, ended.err
    assert "lost" not in ended.err
    differ_by(ended.folder, -3)


@HOURS
def test_who_failed_first_is_no_matter_of_the_time_of_day(skewed: Callable, hours: int) -> None:
    body = """
        say("clock%d" % RANK, time.time())
        meet()
        time.sleep(1.2 - RANK)
        raise ValueError("of %d" % RANK)
    """
    # The second failure comes while the first one's end is under way.
    ended = skewed(hours, body, "--grace", "3").end()
    assert ended.code == 1
    assert "xla-run: rank 1 (host b, pid " in ended.err and "raised ValueError: of 1" in ended.err
    differ_by(ended.folder, hours)


def test_since_goes_by_the_time_of_day_where_the_job_was_started(
    skewed: Callable, tmp_path: Path
) -> None:
    body = """
        say("clock%d" % RANK, time.time())
        print("old", flush=True)
        time.sleep(1.5)
        print("newer", flush=True)
        say("on%d" % RANK)
        while not os.path.exists(FOLDER + "/go"):
            time.sleep(0.05)
        print("newest", flush=True)
    """
    logs = tmp_path / "logs"
    job = skewed(26, body, "--log-dir", str(logs), "--job-id", "clocks")
    for rank in range(2):
        job.wait_for(f"on{rank}")
    time.sleep(2)
    since = datetime.now()
    (job.folder / "go").write_text("x")
    ended = job.end()
    assert ended.code == 0, ended.err
    shown = job.ask("logs", "clocks", "--since", since.isoformat())
    # What was written last before that time may be shown as well.
    assert shown.count("newest") == 2 and "old" not in shown, shown
    differ_by(ended.folder, 26)


def test_nodes_whose_time_of_day_differs_work_together(two_hosts: TwoHosts, tmp_path: Path) -> None:
    body = "say('clock%d' % (RANK // 2), time.time()); time.sleep(4); print('done', RANK)"
    clock = ("env", f"PYTHONPATH={clock_of(tmp_path, -3)}")
    jobs = [two_hosts.on(name, node, body, *SOON, before=clock) for node, name in enumerate("ab")]
    head, _ = [job.end() for job in jobs]
    assert head.code == 0 and head.out.count("done") == 4, head.err
    assert "lost" not in head.err
    differ_by(two_hosts.folder, -3)
