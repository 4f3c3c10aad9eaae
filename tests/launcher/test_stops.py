"""Stopping a job: by signals to the launcher, and by the death of any process of ours."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from torch_xdist.system import process_tree

GONE_S = 5.0
TWO = ("--nprocs", "2")
_WAIT = """
meet()
say("ready")
threading.Event().wait()
"""


def _pids(job, part: str) -> list[int]:
    found = []
    for pid in job.alive():
        try:
            with open(f"/proc/{pid}/cmdline") as cmdline:
                if part in cmdline.read():
                    found.append(pid)
        except OSError:
            continue
    return found


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_stops_the_job_in_order(start: Callable, number: int, code: int) -> None:
    job = start(_WAIT, *TWO)
    job.wait_for("ready")
    asked_s = time.monotonic()
    job.process.send_signal(number)
    ended = job.end(20)
    assert time.monotonic() - asked_s < GONE_S
    assert ended.code == code
    assert "Traceback" not in ended.out + ended.err
    assert f"stopped by {signal.Signals(number).name}" in ended.err


def test_the_ranks_get_time_for_a_checkpoint(start: Callable) -> None:
    job = start(
        """
        def save(*_):
            time.sleep(1)
            say("saved")
            sys.exit(0)
        signal.signal(signal.SIGTERM, save)
        meet()
        say("ready")
        while True: time.sleep(0.1)
        """,
        *TWO,
    )
    job.wait_for("ready")
    job.process.terminate()
    ended = job.end(20)
    assert ended.code == 143 and (job.folder / "saved").exists()


def test_a_second_ctrl_c_ends_ranks_that_do_not_listen(start: Callable) -> None:
    job = start("signal.signal(signal.SIGINT, signal.SIG_IGN)" + _WAIT, *TWO)
    job.wait_for("ready")
    job.process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    assert job.process.poll() is None
    asked_s = time.monotonic()
    job.process.send_signal(signal.SIGINT)
    ended = job.end(20)
    assert time.monotonic() - asked_s < GONE_S
    assert ended.code == 130 and "Traceback" not in ended.out + ended.err


def test_ctrl_c_before_any_rank_has_started(start: Callable) -> None:
    job = start(_WAIT, *TWO)
    while not _pids(job, "on_host.nursery"):
        time.sleep(0.01)
    job.process.send_signal(signal.SIGINT)
    ended = job.end(20)
    assert ended.code == 130 and "Traceback" not in ended.out + ended.err


def test_ctrl_c_while_the_job_is_being_taken_down(start: Callable) -> None:
    job = start(
        """
        signal.signal(signal.SIGTERM, lambda *_: say("termed"))
        meet()
        if RANK == 1:
            fault(); raise ValueError("bad batch")
        while True: time.sleep(0.1)
        """,
        *TWO,
    )
    job.wait_for("termed")
    job.process.send_signal(signal.SIGINT)
    ended = job.end(20)
    assert ended.code in (1, 130) and ended.after_fault_s < GONE_S + 1
    assert (ended.out + ended.err).count("Traceback") <= 1


@pytest.mark.parametrize("way", ["plain", "stopped", "under nohup"])
def test_no_rank_outlives_a_killed_launcher(start: Callable, way: str) -> None:
    before = ("nohup",) if way == "under nohup" else ()
    job = start("subprocess.Popen(['setsid', 'sleep', '600'])" + _WAIT, *TWO, before=before)
    job.wait_for("ready")
    if way == "stopped":
        job.process.send_signal(signal.SIGSTOP)
    if way == "under nohup":
        job.process.send_signal(signal.SIGHUP)
        time.sleep(0.5)
        assert job.process.poll() is None and job.alive()
    job.process.kill()
    job.process.wait()
    assert job.gone(GONE_S), job.alive()


@pytest.mark.parametrize("part", ["on_host.agent", "on_host.nursery"])
def test_no_rank_outlives_a_killed_agent_or_nursery(start: Callable, part: str) -> None:
    job = start("subprocess.Popen(['setsid', 'sleep', '600'])" + _WAIT, *TWO)
    job.wait_for("ready")
    (agent,) = _pids(job, "on_host.agent")
    (nursery,) = process_tree.children(agent)
    victim = agent if part == "on_host.agent" else nursery
    asked_s = time.monotonic()
    os.kill(victim, signal.SIGKILL)
    ended = job.end(20)
    assert time.monotonic() - asked_s < GONE_S
    assert ended.code == 70
    assert "has died" in ended.err


def test_no_rank_outlives_the_script_that_spawned_it(start: Callable) -> None:
    job = start(
        """
        from torch_xdist.launcher.ways_in.spawn import spawn
        def work(rank):
            open(os.path.join(os.environ["FOLDER"], "up%d" % rank), "w").write("x")
            threading.Event().wait()
        spawn(work, nprocs=2)
        """
    )
    job.wait_for("up0")
    job.wait_for("up1")
    job.process.kill()
    job.process.wait()
    assert job.gone(GONE_S), job.alive()


def test_a_killed_conductor_is_told_and_its_ranks_are_gone(start: Callable) -> None:
    job = start(
        """
        from torch_xdist.launcher.ways_in.spawn import spawn
        def work(rank):
            open(os.path.join(os.environ["FOLDER"], "up%d" % rank), "w").write("x")
            threading.Event().wait()
        spawn(work, nprocs=2)
        """
    )
    job.wait_for("up0")
    job.wait_for("up1")
    (conductor,) = _pids(job, "ways_in.conductor")
    asked_s = time.monotonic()
    os.kill(conductor, signal.SIGKILL)
    ended = job.end(20)
    assert time.monotonic() - asked_s < GONE_S + 1
    assert ended.code == 70
    assert "ended with code -9; its ranks were ended too" in ended.err


def test_ctrl_c_in_a_script_that_spawned_ends_its_ranks(start: Callable) -> None:
    job = start(
        """
        from torch_xdist.launcher.ways_in.spawn import spawn
        def work(rank):
            open(os.path.join(os.environ["FOLDER"], "up%d" % rank), "w").write("x")
            threading.Event().wait()
        try:
            spawn(work, nprocs=2)
        except KeyboardInterrupt:
            sys.exit(130)
        """
    )
    job.wait_for("up0")
    job.wait_for("up1")
    job.process.send_signal(signal.SIGINT)
    assert job.end(20).code == 130


def test_a_second_job_of_the_same_name_is_refused(start: Callable) -> None:
    job = start(_WAIT, *TWO, "--job-id", "nightly")
    job.wait_for("ready")
    env = {**os.environ, "XLA_RUN_STATE_DIR": str(job.folder)}
    words = [sys.executable, "-m", "torch_xdist.launcher", "--job-id", "nightly", "--", "true"]
    second = subprocess.run(words, env=env, capture_output=True, text=True, timeout=30)
    assert second.returncode == 74
    assert "job nightly: it is already running on this host" in second.stderr
    assert job.process.poll() is None
