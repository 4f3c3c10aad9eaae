"""Ranks that do not go on: what is said about them, and when the job is killed for it.

The ranks train on the device, and hang in real collectives.
"""

import os
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest

TWO = ("--nprocs", "2", "--beat-every", "0.2")
WARM = {"XLA_RUN_PREIMPORT": "torch,jax,torch_xla.core.xla_model,torch.distributed.tensor"}
GLOO = {**WARM, "XDIST_TRANSPORT": "gloo"}
LONG = pytest.mark.long
LOOP = """
import torch
import torch_xla.core.xla_model as xm

def train(before_step=lambda step: None, steps=60):
    device = xm.xla_device()
    weight = torch.ones(4, device=device)
    for step in range(1, steps + 1):
        before_step(step)
        gradient = weight * 2
        xm.all_reduce("sum", [gradient])
        weight = weight + gradient * 1e-9
        xm.mark_step()
        weight.cpu()
        time.sleep(0.02)
"""


@pytest.mark.long
@pytest.mark.parametrize(
    "transport", ["shared memory", pytest.param("gloo", marks=pytest.mark.long)]
)
def test_a_rank_asleep_in_python_is_named_with_its_line_and_killed_if_asked(
    run: Callable, transport: str
) -> None:
    ended = run(
        LOOP
        + """
def fetch_batch(step):
    if RANK == 1 and step == 20:
        fault()
        time.sleep(600)
train(fetch_batch)
""",
        *(*TWO, "--hang-warn", "1", "--hang-timeout", "3"),
        env=GLOO if transport == "gloo" else WARM,
    )
    assert ended.code == 76, ended.err
    where = (
        r"rank 1 is in step 20 \(train\.py:\d+\); rank 0 waits in all_reduce #20 \(train\.py:\d+\)"
    )
    assert re.search(rf"no rank went on for 1 s: {where}", ended.err), ended.err
    assert re.search(rf"xla-run: rank 1 \(host .*\) did not go on: no .* 3 s: {where}", ended.err)
    assert "stack of rank 1:" in ended.err and "in fetch_batch" in ended.err
    assert "stack of rank 0:" not in ended.err
    assert "in fetch_batch" in ended.log(1)
    assert 3.0 < ended.after_fault_s < 30


@pytest.mark.long
def test_a_stopped_process_is_seen_and_killed_if_asked(run: Callable) -> None:
    ended = run(
        LOOP
        + """
def stop(step):
    if RANK == 1 and step == 20:
        time.sleep(0.5)
        fault()
        os.kill(os.getpid(), signal.SIGSTOP)
train(stop)
""",
        *(*TWO, "--hang-warn", "1", "--hang-timeout", "3", "--lost-after", "1"),
        env=WARM,
    )
    assert ended.code == 76, ended.err
    assert re.search(
        r"rank 1 is stopped \(T\) after step 19; rank 0 waits in all_reduce #20", ended.err
    )
    assert "(rank 1 sent no heartbeat)" in ended.err
    assert ended.after_fault_s < 30


ABSENT = """
import torch
import torch_xla.core.xla_model as xm
if RANK == {absent}:
    def load_data():
        fault()
        time.sleep(600)
    load_data()
xm.all_reduce("sum", [torch.ones(4, device=xm.xla_device())])
xm.mark_step()
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("env", "absent", "words"),
    [
        pytest.param(*(GLOO, 1, r"rank 0 starts its device, where all ranks"), marks=LONG),
        pytest.param(*(GLOO, 0, r"rank 1 starts its device, where all ranks"), marks=LONG),
        (WARM, 0, r"rank 1 starts its device, where all ranks meet \(train\.py:\d+\)"),
        (WARM, 1, r"rank 0 waits in all_reduce #1 \(train\.py:\d+\)"),
    ],
    ids=["gloo, the second", "gloo, the first", "shared memory, the first", "its first collective"],
)
def test_a_rank_stuck_before_its_first_step_is_named_and_killed_if_asked(
    run: Callable, env: dict[str, str], absent: int, words: str
) -> None:
    ended = run(
        ABSENT.format(absent=absent),
        *(*TWO, "--hang-warn", "1.5", "--hang-timeout", "3"),
        env=env,
    )
    assert ended.code == 76, ended.err
    stuck = rf"rank {absent} has not come to its first step \(train\.py:\d+\)"
    assert re.search(rf"no rank went on for [12] s: {stuck}; {words}", ended.err), ended.err
    assert re.search(rf"xla-run: rank {absent} \(host .*\) did not go on", ended.err)
    assert f"stack of rank {absent}:" in ended.err and "in load_data" in ended.err
    assert ended.after_fault_s < 30


@pytest.mark.long
def test_a_long_compilation_is_announced_and_no_hang(start: Callable) -> None:
    job = start(
        """
        import torch
        import torch_xla.core.xla_model as xm
        x = torch.randn(450, 64, device=xm.xla_device())
        for n in range(400):
            x = torch.sin(x[1:] * 2)  # Of another shape each time, and so another kernel.
        began_s = time.monotonic()
        xm.mark_step()
        x.cpu()
        say("took%d" % RANK, time.monotonic() - began_s)
        """,
        *(*TWO, "--hang-warn", "3", "--hang-timeout", "4", "--notice-after", "1"),
        env=WARM,
    )
    # Nothing is measured here but that a wait is told: a busy machine compiles for a minute, and
    # needs more than a second for the start of a device, which is no compilation.
    ended = job.end(limit_s=240)
    assert ended.code == 0, ended.err
    took_s = [float((ended.folder / f"took{rank}").read_text()) for rank in range(2)]
    assert min(took_s) > 5.0, "long enough to be taken for a hang"
    assert "no rank went on" not in ended.err
    assert re.search(
        r"(ranks 0, 1 compile|rank [01] compiles) for step 1 \(train\.py:\d+\)", ended.err
    )


def test_a_rank_that_says_nothing_of_a_device_is_left_alone(run: Callable) -> None:
    ended = run("time.sleep(2.5)", *TWO, "--hang-warn", "1", "--hang-timeout", "1.5")
    assert ended.code == 0 and "went on" not in ended.err


def test_ranks_that_never_arrive_end_the_job_with_72(run: Callable, tmp_path: Path) -> None:
    (tmp_path / "sleeps.py").write_text("import time; time.sleep(600)")
    ended = run(
        "pass",
        *("--nprocs", "2", "--notice-after", "0.5", "--rendezvous-timeout", "2"),
        env={"XLA_RUN_PREIMPORT": "sleeps", "PYTHONPATH": str(tmp_path)},
    )
    assert ended.code == 72
    assert "waiting for ranks 0, 1 of 2 to arrive" in ended.err
    assert "rendezvous: ranks 0, 1 of 2 did not arrive in 2 s" in ended.err


@pytest.mark.long
def test_the_stacks_of_ranks_that_wait_for_each_other_can_be_asked_for(start: Callable) -> None:
    job = start(
        LOOP
        + """
def inner_loop(step):
    say("ready%d" % step)
    if RANK == 1 and step == 5: time.sleep(600)
train(inner_loop)
""",
        *(*TWO, "--job-id", "stacked"),
        env=WARM,
    )
    job.wait_for("ready5")
    end_s = time.monotonic() + 30
    while "stacked  running  2      2   " not in (table := job.ask("ps")):
        assert time.monotonic() < end_s, table
    stacks = job.ask("stack", "stacked")
    assert "rank 0:" in stacks and "rank 1:" in stacks
    assert "in inner_loop" in stacks.partition("rank 1:")[2]
    assert "in train" in stacks.partition("rank 1:")[0]
    assert job.ask("stop", "stacked", "--now").strip() == "job stacked: stopped"
    assert job.end(20).code == 143
    assert os.path.exists(job.folder / "logs" / "stacked")
    assert "in inner_loop" in job.ask("logs", "stacked", "--rank", "1")
