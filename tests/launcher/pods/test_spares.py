"""Hosts that are lost, or not there, and what an attempt then runs on: spares, or fewer hosts.

Times are measured from outside, and afterwards nothing of the job is alive on any host.
"""

import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from pod import Pod

from torch_xdist.launcher.facts.errors import ExitCode

WAITS = """
    attempt = os.environ["XLA_RUN_ATTEMPT"]
    say("on%s-%d" % (attempt, RANK), str(time.monotonic()))
    print("attempt", attempt, "world", os.environ["WORLD_SIZE"])
    while attempt == "0":
        say("alive-%d" % RANK, str(time.monotonic()))
        time.sleep(0.02)
"""
# The whole batch is the same however many ranks share it. Attempt 0 waits for its end at step 12.
TRAINS = """
    import torch
    import torch_xla.core.xla_model as xm
    from torch_xdist.checkpoint import CheckpointManager

    world = int(os.environ["WORLD_SIZE"])
    attempt = int(os.environ["XLA_RUN_ATTEMPT"])
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1).to("xla")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    job = {"model": model, "optimizer": optimizer}
    with CheckpointManager(FOLDER + "/saved", replicated=("model", "optimizer")) as manager:
        resumed = manager.restore(**job)
        first = resumed.step if resumed else 0
        print("attempt", attempt, "from step", first, "world", world)
        for step in range(first + 1, 21):
            batch = torch.randn(8, 4, generator=torch.Generator().manual_seed(step))
            optimizer.zero_grad()
            loss = model(batch[RANK::world].to("xla")).sub(1).square().mean()
            loss.backward()
            xm.optimizer_step(optimizer)
            mean = xm.all_reduce("sum", loss.detach(), scale=1 / world).item()
            if RANK == 0:
                print("step", step, "loss", repr(mean))
            if step % 5 == 0:
                manager.save(step, **job)
                manager.wait()
            if step == 12 and attempt == 0:
                say("on0-%d" % RANK)
                time.sleep(200)
"""
SHORT = ("--lost-after", "3", "--beat-every", "1", "--reconnect-within", "3")


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pod]:
    shared = tmp_path_factory.getbasetemp()
    with Pod(tmp_path_factory.mktemp("three"), shared, ("a", "b", "c")) as pod:
        yield pod


@pytest.fixture
def begun(start: Callable, three: Pod) -> Callable[..., Any]:
    """`begun(body, *options)`: a job whose hosts are all up."""
    three.make_whole()

    def begin(body: str, *options: str, **more: Any) -> Any:
        own = ("--ssh-command", three.ssh, "--env", "FOLDER", "--env", "XLA_RUN_TEST")
        return start(body, *own, "-n", "1", *options, **more)

    return begin


def running(job: Any, ranks: int) -> Any:
    """The job, whose ranks are all at work."""
    for rank in range(ranks):
        job.wait_for(f"on0-{rank}")
    return job


def losses() -> dict[int, float]:
    """Those of `TRAINS` by step, without ranks, hosts, or a restart."""
    torch.manual_seed(0)
    model, found = torch.nn.Linear(4, 1), {}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in range(1, 21):
        batch = torch.randn(8, 4, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        loss = model(batch).sub(1).square().mean()
        loss.backward()
        optimizer.step()
        found[step] = loss.item()
    return found


SHIPPED = """
import os, time
attempt, folder = os.environ["XLA_RUN_ATTEMPT"], os.environ["FOLDER"]
with open(os.path.join(folder, "on%s-%s" % (attempt, os.environ["RANK"])), "w") as on:
    on.write("on")
print("in", os.getcwd(), sorted(os.listdir()))
while attempt == "0":
    time.sleep(0.02)
"""


def test_a_spare_gets_the_code_that_is_shipped(begun: Callable, three: Pod, tmp_path: Path) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text(SHIPPED)
    options = ("--hosts", "a,b,c", "--spares", "1", "--ship", ".", *SHORT)
    words = (*options, "--", sys.executable, "train.py")
    job = running(begun("", *words, dash=False, before=("env", "-C", str(code))), 2)
    three.hosts["b"].kill()
    ended = job.end(limit_s=60)
    assert ended.code == 0, ended.err
    assert re.search(r"^\[c/1\] in \S+/tree/code \['train.py'\]$", ended.out, re.MULTILINE), (
        ended.out
    )


def test_a_host_that_is_killed_is_replaced_by_a_spare(begun: Callable, three: Pod) -> None:
    job = running(begun(WAITS, "--hosts", "a,b,c", "--spares", "1", *SHORT), 2)
    three.hosts["b"].kill()
    since_s = time.monotonic()
    ended = job.end(limit_s=40)
    assert time.monotonic() - since_s < 40
    assert ended.code == 0, ended.err
    # Nobody knows that its ranks are dead; they may run for as long as they could on a cut link.
    assert re.search("restart 1 of 10 after preemptions and lost hosts in [1-4] s", ended.err)
    why = r"host b was lost \(its stream ended.*\); spare c takes its place \(0 of 1 spares left\)"
    assert re.search(f"^{why}$", ended.err, re.MULTILINE), ended.err
    assert re.search(f"^2 attempts: {why}$", ended.err, re.MULTILINE), ended.err
    assert "[c/1] attempt 1 world 2\n" in ended.out


def test_no_rank_of_a_host_that_was_cut_off_runs_beside_the_next_attempt(
    begun: Callable, three: Pod
) -> None:
    job = running(begun(WAITS, "--hosts", "a,b,c", "--spares", "1", *SHORT), 2)
    three.hosts["b"].cut()
    ended = job.end(limit_s=40)
    assert ended.code == 0, ended.err
    told = "host b was lost (no word from it for 3 s); spare c takes its place (0 of 1 spares left)"
    assert told in ended.err
    last_s = float((ended.folder / "alive-1").read_text())
    began_s = [float((ended.folder / f"on1-{rank}").read_text()) for rank in range(2)]
    assert last_s < min(began_s)


def test_a_job_goes_on_with_fewer_hosts(begun: Callable, three: Pod) -> None:
    job = running(begun(WAITS, "--hosts", "a,b,c", "--min-hosts", "2", *SHORT), 3)
    three.hosts["b"].kill()
    ended = job.end(limit_s=40)
    assert ended.code == 0, ended.err
    assert "; the job goes on with 2 of 3 hosts\n" in ended.err
    assert "[c/1] attempt 1 world 2\n" in ended.out


def test_fewer_hosts_than_are_needed_end_the_job(begun: Callable, three: Pod) -> None:
    job = running(begun(WAITS, "--hosts", "a,b,c", "--min-hosts", "2", *SHORT), 3)
    for name in ("b", "c"):
        three.hosts[name].kill()
    ended = job.end(limit_s=60)
    assert ended.code == ExitCode.HOST, ended.err
    assert "; at least 2 hosts are needed, and fewer are left\n" in ended.err


def test_a_host_that_cannot_be_reached_at_the_start_is_replaced(
    begun: Callable, three: Pod
) -> None:
    three.hosts["b"].kill()
    ended = begun("print('ran')", "--hosts", "a,b,c", "--spares", "1").end(limit_s=40)
    assert ended.code == 0, ended.err
    assert "host b could not take part; spare c takes its place" in ended.err
    assert "[c/1] ran\n" in ended.out


def test_a_spare_that_cannot_be_reached_either_ends_the_job(begun: Callable, three: Pod) -> None:
    for name in ("b", "c"):
        three.hosts[name].kill()
    ended = begun("print('ran')", "--hosts", "a,b,c", "--spares", "1").end(limit_s=40)
    assert ended.code == ExitCode.HOST
    assert "host b could not take part; spare c takes its place" in ended.err
    assert re.search(r"^xla-run: host c: .*; no spare is left$", ended.err, re.MULTILINE)
    assert "ran" not in ended.out


@pytest.mark.long
@pytest.mark.parametrize(
    ("options", "world", "told"),
    [
        (("--hosts", "a,b,c", "--spares", "1"), 4, "spare c takes its place"),
        pytest.param(
            *(("--hosts", "a,b", "--min-hosts", "1"), 2, "the job goes on with 1 of 2 hosts"),
            marks=pytest.mark.long,
        ),
    ],
)
def test_training_goes_on_from_its_checkpoint_with_the_same_losses(
    begun: Callable, three: Pod, options: tuple[str, ...], world: int, told: str
) -> None:
    job = running(begun(TRAINS, *options, *SHORT, "-n", "2"), 4)
    three.hosts["b"].kill()
    ended = job.end(limit_s=90)
    assert ended.code == 0, ended.err
    assert told in ended.err
    assert "[a/1] attempt 0 from step 0 world 4\n" in ended.out
    assert f"[a/1] attempt 1 from step 10 world {world}\n" in ended.out
    found = re.findall(r"^\[a/0\] step (\d+) loss (\S+)$", ended.out, re.MULTILINE)
    assert [int(step) for step, _ in found] == [*range(1, 13), *range(11, 21)]
    for step, loss in found:
        assert float(loss) == pytest.approx(losses()[int(step)], rel=1e-5), step
