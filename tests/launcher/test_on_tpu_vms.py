"""`xla-run --tpu` with a gcloud that describes a TPU of two workers, both of them this machine.

Its agents are real; afterwards nothing of the job is alive.
"""

import os
import re
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from counting_job import counting, lines_of
from gcloud_stand_in import V4_16, Gcloud

from torch_xdist.launcher.facts.errors import ExitCode
from torch_xdist.system import process_tree

WAITS = "say('on%d' % RANK); time.sleep(200)"
COUNTS = counting(0.05, lines=100)


@pytest.fixture
def on_tpu(start: Callable, tmp_path: Path) -> Callable:
    """`on_tpu(body, ..., faults={"pod-w1": "slow"})`: `start` on the TPUs pod and more."""

    def begin(body: str, *options: str, faults: dict[str, str] | None = None) -> Any:
        gcloud = Gcloud(tmp_path, {"pod": V4_16, "more": V4_16}, faults)
        words = ("--tpu", "pod", "--zone", "z", "--env", "FOLDER", *options)
        return start(body, *words, env={"PATH": gcloud.path, "PJRT_DEVICE": "CPU"})

    return begin


def worker_commands(folder: Path) -> list[tuple[str, str, str]]:
    calls = [words for words in Gcloud.calls(Gcloud(folder, {})) if words[3] == "ssh"]
    return [(words[4], words[5], words[-1].split()[-1][:9]) for words in calls]


def test_ranks_are_numbered_over_the_workers_with_one_for_each_chip(
    on_tpu: Callable, tmp_path: Path
) -> None:
    ended = on_tpu("print(os.environ['GROUP_RANK'], os.environ['LOCAL_RANK'])").end()
    assert ended.code == 0, ended.err
    assert sorted(ended.out.splitlines()) == [
        f"[pod-w{rank // 4}/{rank}] {rank // 4} {rank % 4}" for rank in range(8)
    ]
    assert "8 ranks on 2 hosts, CPU" in ended.err
    # The first login is over before that of any agent begins.
    assert worker_commands(tmp_path)[0] == ("pod", "--worker=0", "true")
    assert len(worker_commands(tmp_path)) == 3


def test_several_tpus_stand_in_the_order_of_their_names(on_tpu: Callable) -> None:
    ended = on_tpu("print(os.environ['GROUP_RANK'])", "--tpu", "more,pod", "-n", "1").end()
    assert ended.code == 0, ended.err
    assert sorted(ended.out.splitlines()) == [
        *("[more-w0/0] 0", "[more-w1/1] 1", "[pod-w0/2] 2", "[pod-w1/3] 3"),
    ]


def test_code_is_shipped_to_the_workers(start: Callable, tmp_path: Path) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text("import os; print(os.getcwd())")
    there = ("--env", f"XLA_RUN_STATE_DIR={tmp_path}/there", "-n", "1")
    words = ("--tpu", "pod", "--zone", "z", *there, "--ship", ".", "--", sys.executable, "train.py")
    env = {"PATH": Gcloud(tmp_path, {"pod": V4_16}).path, "PJRT_DEVICE": "CPU"}
    ended = start("", *words, dash=False, before=("env", "-C", str(code)), env=env).end()
    assert ended.code == 0, ended.err
    assert "shipped 1 file (29 bytes) to hosts pod-w0, pod-w1: " in ended.err
    assert ended.out.count(f"{tmp_path}/there/code/jobs/") == 2
    assert not list((tmp_path / "there/code/jobs").iterdir())


@pytest.mark.long
def test_workers_reduce_together(on_tpu: Callable) -> None:
    body = """
        import torch, torch_xla, torch_xla.core.xla_model as xm
        print("sum", xm.all_reduce("sum", torch.ones(1, device="xla")).item())
    """
    ended = on_tpu(body, "-n", "2").end()
    assert ended.code == 0, ended.err
    assert ended.out.count("sum 4.0") == 4


def test_a_rank_that_fails_is_named_with_its_worker(on_tpu: Callable) -> None:
    ended = on_tpu("meet()\nif RANK == 1: 1 // 0\ntime.sleep(200)", "-n", "1").end()
    assert ended.code == 1
    assert "xla-run: rank 1 (host pod-w1, pid " in ended.err and "ZeroDivision" in ended.err


@pytest.mark.parametrize("fault", ["slow", "chatty", "wrong code"])
def test_a_gcloud_that_is_odd_is_no_harm(on_tpu: Callable, fault: str) -> None:
    ended = on_tpu("print('ran')", "-n", "1", faults={"pod-w1": fault}).end()
    assert ended.code == 0, ended.err
    assert ended.out.count("ran") == 2 and "Welcome" not in ended.out + ended.err


@pytest.mark.parametrize(
    ("worker", "fault", "told"),
    [
        ("pod-w1", "refuses", "host pod-w1: gcloud cannot reach it: ssh: connect to host 203.0.11"),
        ("pod-w0", "refuses", "host pod-w0: gcloud cannot reach it: ssh: connect to host 203.0.11"),
        ("pod-w0", "no key", "host pod-w0: gcloud cannot reach it: ERROR: (gcloud.compute.tpus.tp"),
        ("pod-w1", "cut", "host pod-w1: gcloud cannot reach it: client_loop: send disconnect: Bro"),
    ],
)
def test_a_worker_that_cannot_be_reached_is_named(
    on_tpu: Callable, worker: str, fault: str, told: str
) -> None:
    since_s = time.monotonic()
    options = ("-n", "1", "--reconnect-within", "3")
    ended = on_tpu(WAITS, *options, faults={worker: fault}).end(limit_s=20)
    assert ended.code == ExitCode.HOST
    assert told in ended.err and "by hand" in ended.err
    assert time.monotonic() - since_s < 40


def test_a_worker_that_answers_and_hangs_is_named(on_tpu: Callable) -> None:
    options = ("-n", "1", "--rendezvous-timeout", "4", "--notice-after", "2")
    ended = on_tpu(WAITS, *options, faults={"pod-w1": "hangs"}).end(limit_s=20)
    assert ended.code == ExitCode.RENDEZVOUS
    assert "rendezvous: ranks 0, 1 of 2 (host pod-w1: no answer) did not arrive in 4 s" in ended.err


def test_a_worker_without_the_interpreter_is_named(on_tpu: Callable) -> None:
    ended = on_tpu(WAITS, "-n", "1", "--python", "/no/python").end()
    assert ended.code == ExitCode.HOST
    assert ": /no/python cannot be started there: " in ended.err


def test_a_killed_launcher_leaves_nothing_on_any_worker(on_tpu: Callable) -> None:
    job = on_tpu(WAITS, "-n", "1")
    job.wait_for("on0")
    job.wait_for("on1")
    job.process.kill()
    job.process.wait()
    assert job.gone(5.0), f"survivors: {job.alive()}"


def gclouds_of(job: Any) -> list[int]:
    """The gclouds of a job, the youngest last."""
    found = process_tree.children(job.process.pid)
    return [pid for pid in found if b"/gcloud\0" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def test_a_gcloud_that_is_killed_is_made_anew_and_no_line_is_lost(on_tpu: Callable) -> None:
    job = on_tpu(COUNTS, "-n", "1")
    for rank in range(2):
        job.wait_for(f"on{rank}")
    os.kill(gclouds_of(job)[-1], signal.SIGKILL)
    ended = job.end()
    assert ended.code == 0, ended.err
    for rank in range(2):
        assert lines_of(ended.out, rank) == [*range(100)]
    told = r"^connection to host pod-w[01] lost \(its stream ended\), waiting up to 30 s$"
    assert len(re.findall(told, ended.err, re.M)) == 1, ended.err
    assert len(re.findall(r"^host pod-w[01] is back after \d+\.\d s$", ended.err, re.M)) == 1


def test_a_worker_whose_gcloud_cannot_be_made_anew_is_lost_in_time(
    on_tpu: Callable, tmp_path: Path
) -> None:
    job = on_tpu(WAITS, "-n", "1", "--reconnect-within", "3")
    for rank in range(2):
        job.wait_for(f"on{rank}")
    Gcloud(tmp_path, {"pod": V4_16}, {"pod-w0": "hangs", "pod-w1": "hangs"})
    os.kill(gclouds_of(job)[-1], signal.SIGKILL)
    since_s = time.monotonic()
    job.process.wait(20)
    assert 2 < time.monotonic() - since_s < 40
    assert job.process.returncode == ExitCode.HOST
    assert "was lost: its stream ended, and there was no new connection for 3 s" in job.texts()
    assert job.gone(20.0), f"survivors: {job.alive()}"
