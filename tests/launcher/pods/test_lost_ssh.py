"""A host of `--hosts` whose ssh ends, or whose link is down for a while: another ssh leads to the
same agent, and the job goes on.
"""

import contextlib
import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from counting_job import counting, lines_of
from pod import Pod

from torch_xdist.launcher.facts.errors import ExitCode
from torch_xdist.system import process_tree

TWO = ("--hosts", "a,b", "-n", "2")
SOON = ("--lost-after", "2", "--beat-every", "0.5")
WAITS = "say('on%d' % RANK); time.sleep(200)"
COUNTS = counting(0.05)


def running(on_hosts: Callable, *options: str, body: str = COUNTS) -> Any:
    """A job whose four ranks are all at work."""
    job = on_hosts(body, *TWO, *options)
    for rank in range(4):
        job.wait_for(f"on{rank}")
    return job


def is_ssh(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip() == "ssh"
    return False


def ssh_of(job: Any) -> list[int]:
    """The connections of a job, the youngest last."""
    return [pid for pid in process_tree.children(job.process.pid) if is_ssh(pid)]


def is_whole(ended: Any) -> None:
    assert ended.code == 0, ended.err
    for rank in range(4):
        assert lines_of(ended.out, rank) == [*range(200)]


def test_an_ssh_that_is_killed_is_made_anew_and_no_line_is_lost(on_hosts: Callable) -> None:
    job = running(on_hosts)
    for _ in range(2):
        os.kill(ssh_of(job)[-1], signal.SIGKILL)
        time.sleep(2)
    ended = job.end()
    is_whole(ended)
    told = r"^connection to host [ab] lost \(its stream ended\), waiting up to 30 s$"
    assert len(re.findall(told, ended.err, re.M)) == 2, ended.err
    assert len(re.findall(r"^host [ab] is back after \d\.\d s$", ended.err, re.M)) == 2, ended.err


@pytest.mark.parametrize("names", [pytest.param("b", marks=pytest.mark.long), "ab"])
def test_links_that_are_down_for_a_while_lose_no_line(
    on_hosts: Callable, pod: Pod, names: str
) -> None:
    """All links at once: it is the network of the head that is gone."""
    job = running(on_hosts, *SOON)
    for name in names:
        pod.hosts[name].cut()
    time.sleep(5)
    for name in names:
        pod.hosts[name].mend()
    ended = job.end()
    is_whole(ended)
    for name in names:
        lost = f"connection to host {name} lost (no word from it for 2 s), waiting up to 28 s"
        assert lost in ended.err, ended.err
        assert re.search(rf"^host {name} is back after \d+\.\d s$", ended.err, re.M), ended.err


def test_a_link_that_stays_down_ends_both_sides_in_time(on_hosts: Callable, pod: Pod) -> None:
    job = running(on_hosts, *SOON, "--reconnect-within", "6", body=WAITS)
    pod.hosts["b"].cut()
    since_s = time.monotonic()
    job.process.wait(14)
    assert 5 < time.monotonic() - since_s < 28
    assert job.process.returncode == ExitCode.HOST
    why = "no word from it for 2 s, and there was no new connection for 4 s"
    assert f"xla-run: host b (ranks 2, 3) was lost: {why}" in job.texts()
    assert job.gone(5.0), f"survivors: {job.alive()}"


def test_a_head_that_is_killed_behind_a_new_ssh_leaves_nothing(on_hosts: Callable) -> None:
    job = running(on_hosts)
    os.kill(ssh_of(job)[-1], signal.SIGKILL)
    end_s = time.monotonic() + 10
    while " is back after " not in job.texts():
        assert time.monotonic() < end_s, job.texts()
        time.sleep(0.05)
    job.process.kill()
    job.process.wait()
    assert job.gone(5.0), f"survivors: {job.alive()}"


def test_a_head_that_is_killed_while_a_link_is_down_leaves_nothing_in_time(
    on_hosts: Callable, pod: Pod
) -> None:
    job = running(on_hosts, *SOON, "--reconnect-within", "6", body=WAITS)
    pod.hosts["b"].cut()
    job.process.kill()
    job.process.wait()
    end_s = time.monotonic() + 12
    while any(not is_ssh(pid) for pid in job.alive()):
        assert time.monotonic() < end_s, f"survivors: {job.alive()}"
        time.sleep(0.1)
    # What carried the stream on this side waits for its answers, as it is told to.
    assert job.gone(20.0), f"survivors: {job.alive()}"


def test_without_a_grace_a_lost_ssh_is_a_lost_host(on_hosts: Callable) -> None:
    job = running(on_hosts, "--reconnect-within", "off", body=WAITS)
    os.kill(ssh_of(job)[-1], signal.SIGKILL)
    ended = job.end(limit_s=15)
    assert ended.code == ExitCode.HOST
    assert re.search(r"xla-run: host \w \(ranks \d, \d\) was lost: its stream ended", ended.err)


def test_a_head_that_is_stopped_for_a_while_finds_its_agents_again(on_hosts: Callable) -> None:
    """They have given their connections up, which their side of ssh has not."""
    job = running(on_hosts, *SOON)
    job.process.send_signal(signal.SIGSTOP)
    time.sleep(4)
    job.process.send_signal(signal.SIGCONT)
    is_whole(job.end())


@pytest.mark.parametrize("body", [WAITS, COUNTS], ids=["quiet", "chatty"])
def test_a_head_that_is_killed_is_known_from_an_ssh_that_is(on_hosts: Callable, body: str) -> None:
    job = running(on_hosts, body=body)
    job.process.kill()
    job.process.wait()
    assert job.gone(5.0), f"survivors: {job.alive()}"
