"""Ranks in the pods of a job on Kubernetes: in each pod runs a node of `xla-run --nnodes`."""

import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kubernetes_job import LIMIT_S, Job, jobs
from processes import kill_at_once

from torch_xdist.system import process_tree

_COUNTS = """
import os, time
import torch, torch_xla
import torch_xla.core.xla_model as xm

RANK = os.environ["RANK"]
ones = torch.ones(1, device=torch_xla.device())
total = int(xm.all_reduce(xm.REDUCE_SUM, ones).item())
print(f"rank {RANK} of {total}", flush=True)
if RANK == os.environ.get("FAILS"):
    raise ValueError("batch 40 has 3 rows, 4 are needed")
time.sleep(float(os.environ.get("SLEEPS", 0)))
xm.rendezvous("end")
"""
_SAVES = """
import os, signal, time
def save(*_):
    print("saved by rank", os.environ["RANK"], flush=True)
    raise SystemExit(0)
signal.signal(signal.SIGTERM, save)
print("up", flush=True)
time.sleep(100)
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    with jobs(tmp_path) as begin:

        def two_pods(body: str, *options: str) -> Job:
            (tmp_path / "train.py").write_text(body)
            words = ["--nodes", "2", "--env", "PJRT_DEVICE=CPU", *options]
            return begin(*words, "--", sys.executable, str(tmp_path / "train.py"), ranks=2)

        yield two_pods


def pod_0(job: Job) -> str:
    return "".join(path.read_text() for path in job.folder.glob("pods/*-0-00000/log"))


def wait_for_line(job: Job, line: str) -> None:
    end_s = time.monotonic() + LIMIT_S
    while line not in pod_0(job):
        assert time.monotonic() < end_s and job.process.poll() is None, pod_0(job)
        time.sleep(0.05)


def test_ranks_of_all_pods_are_one_world_and_their_lines_one_view(start) -> None:
    code, out, err = start(_COUNTS).end()
    assert code == 0, (out, err)
    assert "4 ranks on 2 hosts, CPU (TCP)\n" in out
    for label in ("node0/0", "node0/1", "node1/2", "node1/3"):
        assert f"[{label}] rank {label[-1]} of 4\n" in out


@pytest.mark.long
def test_a_rank_that_fails_in_another_pod_is_named_and_ends_the_job(start) -> None:
    code, out, err = start(_COUNTS, "--env", "FAILS=3").end()
    assert code == 1, (out, err)
    assert "rank 3 (host node1" in out and "raised ValueError: batch 40 has 3 rows" in out
    assert "job train failed: pod train-workers-0-0-00000 (node here) ended with code 1" in err


@pytest.mark.long
def test_ctrl_c_lets_the_ranks_of_all_pods_save(start) -> None:
    job = start(_SAVES, "--graceful-stop", "20")
    for rank in range(4):
        wait_for_line(job, f"/{rank}] up")
    job.process.send_signal(signal.SIGINT)
    code, out, err = job.end()
    assert code == 130, (out, err)
    for rank in range(4):
        assert f"saved by rank {rank}\n" in out


@pytest.mark.long
def test_a_pod_that_is_lost_is_told_and_all_pods_are_started_again(start) -> None:
    # Kubernetes starts again at once, before a node that may come back is given up.
    limits = ("--lost-after", "3", "--reconnect-within", "0")
    job = start(_COUNTS, "--env", "SLEEPS=8", *limits)
    wait_for_line(job, "rank 3 of 4")
    # Its processes are gone without a word, as those of a node that has no power.
    lost = next(job.folder.glob("pods/*-1-00000"))
    kill_at_once(processes_of(int((lost / "pid").read_text())))
    (lost / "code").write_text("143")
    code, out, err = job.end()
    assert code == 0, (out, err)
    assert "xla-run: host node1" in out and "was lost" in out
    assert "job train is started again (restart 1): pod train-workers-0-0-00000 (node here)" in err
    assert out.count("rank 0 of 4\n") == 2


def processes_of(pid: int) -> set[int]:
    return {pid} | process_tree.descendants(pid)
