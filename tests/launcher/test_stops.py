"""Stopping a job: by signals to the launcher, and by the death of any process of ours."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from processes import kill, kill_at_once

from torch_xdist.system import process_tree
from torch_xdist.system.process import Process

# What is claimed is 5 s; a slow machine gets more.
GONE_S = 15.0
TWO = ("--nprocs", "2")
_WAIT = """
meet()
say("ready")
threading.Event().wait()
"""


SPAWN = """
from torch_xdist.launcher.ways_in.spawn import spawn
def work(rank):
    open(os.path.join(os.environ["FOLDER"], "up%d" % rank), "w").write(str(os.getpid()))
    {then}
    threading.Event().wait()
if __name__ == "__main__":
    spawn(work, nprocs=2)
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


_IMPORTS = """
import os, time
open(os.path.join(os.environ["FOLDER"], "importing"), "w").write("x")
time.sleep(600)
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("options", [("-n", "1"), ("--once",), TWO], ids=" ".join)
def test_a_stop_while_the_nursery_still_imports_ends_the_job_at_once(
    start: Callable, tmp_path: Path, options: tuple[str, ...], number: int, code: int
) -> None:
    (tmp_path / "takes_long.py").write_text(_IMPORTS)
    env = {"XLA_RUN_PREIMPORT": "takes_long", "PYTHONPATH": str(tmp_path)}
    job = start("say('ran')", *options, env=env)
    job.wait_for("importing")
    asked_s = time.monotonic()
    job.process.send_signal(number)
    ended = job.end(20)
    assert time.monotonic() - asked_s < GONE_S / 2
    assert ended.code == code and "Traceback" not in ended.out + ended.err
    assert not (job.folder / "ran").exists()


def test_a_stop_of_spawn_while_the_nursery_still_imports_ends_the_job_at_once(
    start: Callable, tmp_path: Path
) -> None:
    (tmp_path / "takes_long.py").write_text(_IMPORTS)
    env = {"XLA_RUN_PREIMPORT": "takes_long", "PYTHONPATH": str(tmp_path)}
    job = start(SPAWN.format(then=""), env=env)
    job.wait_for("importing")
    asked_s = time.monotonic()
    job.process.send_signal(signal.SIGINT)
    ended = job.end(20)
    assert time.monotonic() - asked_s < GONE_S / 2
    assert ended.code == -signal.SIGINT and not (job.folder / "up0").exists()


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
    assert ended.code == 1 and ended.after_fault_s < GONE_S
    assert (ended.out + ended.err).count("Traceback") == 1
    assert "xla-run: rank 1 (host" in ended.err


def test_many_signals_at_once_are_no_deadlock(start: Callable) -> None:
    job = start(_WAIT, *TWO)
    job.wait_for("ready")
    for _ in range(50):
        job.process.send_signal(signal.SIGTERM)
        job.process.send_signal(signal.SIGINT)
    assert job.end(20).code in (130, 143)


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


@pytest.mark.parametrize(("part", "code"), [("on_host.agent", 73), ("on_host.nursery", 70)])
def test_no_rank_outlives_a_killed_agent_or_nursery(start: Callable, part: str, code: int) -> None:
    job = start("subprocess.Popen(['setsid', 'sleep', '600'])" + _WAIT, *TWO)
    job.wait_for("ready")
    (agent,) = _pids(job, "on_host.agent")
    (nursery,) = process_tree.children(agent)
    victim = agent if part == "on_host.agent" else nursery
    asked_s = time.monotonic()
    os.kill(victim, signal.SIGKILL)
    ended = job.end(20)
    assert time.monotonic() - asked_s < GONE_S
    assert ended.code == code
    assert "has died" in ended.err


def test_an_agent_of_this_host_that_is_killed_is_a_lost_host_that_restarts_are_for(
    start: Callable,
) -> None:
    body = "if os.environ['XLA_RUN_ATTEMPT'] == '1': sys.exit()" + _WAIT
    job = start(body, *TWO, "--max-restarts", "1")
    job.wait_for("ready")
    (agent,) = _pids(job, "on_host.agent")
    os.kill(agent, signal.SIGKILL)
    ended = job.end(40)
    assert ended.code == 0, ended.err
    assert re.search(
        r"the agent of host \S+ has died \(its process ended with code -9\)", ended.err
    )
    assert "restart 1 of 1 in 1 s" in ended.err


def test_nothing_is_left_where_the_agent_and_the_nursery_are_killed_together(
    start: Callable,
) -> None:
    job = start("subprocess.Popen(['setsid', 'sleep', '600'])" + _WAIT, *TWO)
    job.wait_for("ready")
    (agent,) = _pids(job, "on_host.agent")
    (nursery,) = process_tree.children(agent)
    kill_at_once((agent, nursery))
    asked_s = time.monotonic()
    ended = job.end(20)
    assert time.monotonic() - asked_s < GONE_S
    assert ended.code == 73 and "has died" in ended.err


def test_no_rank_outlives_the_script_that_spawned_it(start: Callable) -> None:
    job = start(SPAWN.format(then=""))
    job.wait_for("up0")
    job.wait_for("up1")
    job.process.kill()
    job.process.wait()
    assert job.gone(GONE_S), job.alive()


def test_no_rank_outlives_its_script_for_a_fork_of_that_script(start: Callable) -> None:
    job = start(
        """
        from torch_xdist.launcher.ways_in.spawn import spawn
        def work(rank):
            open(os.path.join(os.environ["FOLDER"], "up%d" % rank), "w").write(str(os.getpid()))
            threading.Event().wait()
        if __name__ == "__main__":
            spawn(work, nprocs=2, join=False)
            if os.fork() == 0:
                say("fork", os.getpid())
            time.sleep(600)
        """
    )
    job.wait_for("up0")
    job.wait_for("up1")
    fork = int(job.wait_for("fork"))
    job.process.kill()
    job.process.wait()
    end_s = time.monotonic() + GONE_S
    while job.alive() != {fork}:
        assert time.monotonic() < end_s, "all but the fork, which is none of ours, must go"
        time.sleep(0.02)
    kill(fork)


def test_a_killed_conductor_is_told_and_its_ranks_are_gone(start: Callable) -> None:
    job = start(SPAWN.format(then=""))
    job.wait_for("up0")
    job.wait_for("up1")
    (conductor,) = _pids(job, "ways_in.conductor")
    asked_s = time.monotonic()
    os.kill(conductor, signal.SIGKILL)
    ended = job.end(20)
    assert time.monotonic() - asked_s < GONE_S + 1
    assert ended.code == 70
    assert "ended with code -9; its ranks were ended too" in ended.err


def test_a_script_that_does_not_read_delays_no_verdict(start: Callable) -> None:
    then = "time.sleep(2 * rank) or rank and os.kill(os.getpid(), 9)"
    job = start(SPAWN.format(then=then + '\n    while True: os.write(1, b"noise\\n" * 5000)'))
    pids = [int(job.wait_for(name)) for name in ("up0", "up1")]
    job.process.send_signal(signal.SIGSTOP)
    for pid in pids:
        with Process(pid) as rank:
            assert rank.wait(2 + GONE_S)
    job.process.send_signal(signal.SIGCONT)
    assert job.end(20).code == 137


def test_ctrl_c_in_a_script_that_spawned_ends_its_ranks(start: Callable) -> None:
    job = start(SPAWN.format(then=""))
    job.wait_for("up0")
    job.wait_for("up1")
    asked_s = time.monotonic()
    job.process.send_signal(signal.SIGINT)
    ended = job.end(20)
    assert ended.code == -signal.SIGINT and "KeyboardInterrupt" in ended.err
    assert time.monotonic() - asked_s < GONE_S


def test_a_second_job_of_the_same_name_is_refused(start: Callable) -> None:
    job = start(_WAIT, *TWO, "--job-id", "nightly")
    job.wait_for("ready")
    env = {**os.environ, "XLA_RUN_STATE_DIR": str(job.folder)}
    words = [sys.executable, "-m", "torch_xdist.launcher", "--job-id", "nightly", "--", "true"]
    second = subprocess.run(words, env=env, capture_output=True, text=True, timeout=30)
    assert second.returncode == 74
    assert "job nightly: it is already running on this host" in second.stderr
    assert job.process.poll() is None


def test_two_jobs_of_one_name_in_different_places_do_not_touch_each_other(
    start: Callable, tmp_path: Path
) -> None:
    def begin(name: str, body: str):
        (tmp_path / name).mkdir()
        env = {"TMPDIR": str(tmp_path / name), "XLA_RUN_STATE_DIR": "", "XDG_RUNTIME_DIR": ""}
        return start(body, *TWO, "--job-id", "train", env=env)

    long = begin(
        "a", 'meet(); say("ready")\nwhile not os.path.exists(FOLDER + "/go"): time.sleep(0.05)'
    )
    long.wait_for("ready")
    assert begin("b", "meet()").end().code == 0
    killed = begin("b2", "meet(); RANK or os.kill(os.getpid(), 9); time.sleep(60)")
    assert killed.end().code == 137
    assert long.process.poll() is None
    (long.folder / "go").write_text("x")
    assert long.end().code == 0, "no process of the first job was swept with the others"
