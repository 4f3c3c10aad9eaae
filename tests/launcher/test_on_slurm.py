"""`xla-run --slurm` in jobs of a real Slurm of two nodes: who the ranks are, and how they end.

Times are measured from outside, and afterwards nothing of the job is alive.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import silence
import slurm_cluster
from digits_job import BODY as DIGITS
from pod import ROOT
from sniffing import sniffed

from torch_xdist.launcher.facts.errors import ExitCode
from torch_xdist.system import process_tree

pytestmark = pytest.mark.long

IN_SALLOC = ("salloc", "--quiet", "--nodes=2", "--ntasks-per-node=1")
WAITS = "say('on%d' % RANK); time.sleep(200)"
SAVES = """
    def save(number, frame):
        say("saved%d" % RANK)
        sys.exit(0)
    signal.signal(signal.SIGTERM, save)
    say("on%d" % RANK)
    time.sleep(200)
"""
FACTS = """
    import json
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "GROUP_RANK", "SLURMD_NODENAME", "XLA_RUN_CONTROL")
    say("rank%d" % RANK, json.dumps([os.environ[name] for name in names]))
    import torch, torch_xla, torch_xla.core.xla_model as xm
    print("sum", xm.all_reduce("sum", torch.ones(1, device="xla")).item())
"""


@pytest.fixture
def on_slurm(start: Callable, slurm: dict[str, str]) -> Callable:
    """`on_slurm(body)`: `start` as two ranks on each of two nodes, in an allocation of its own."""

    def begin(body: str, *options: str, before: tuple[str, ...] = IN_SALLOC, **env: str) -> Any:
        words = ("--slurm", "-n", "2", *options)
        return start(body, *words, before=before, env={**slurm, **env})

    return begin


def all_on(job: Any, ranks: int = 4) -> Any:
    for rank in range(ranks):
        job.wait_for(f"on{rank}")
    return job


def launcher_of(job: Any) -> int:
    """The process of `xla-run` below salloc."""
    (pid,) = process_tree.children(job.process.pid)
    return pid


def asked(slurm: dict[str, str], *words: str) -> str:
    done = subprocess.run(words, env=slurm, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_ranks_are_numbered_over_the_nodes_and_meet(on_slurm: Callable) -> None:
    ended = on_slurm(FACTS).end()
    assert ended.code == 0, ended.err
    told = [json.loads((ended.folder / f"rank{rank}").read_text()) for rank in range(4)]
    assert [one[:5] for one in told] == [
        *(["0", "0", "4", "0", "n1"], ["1", "1", "4", "0", "n1"]),
        *(["2", "0", "4", "1", "n2"], ["3", "1", "4", "1", "n2"]),
    ]
    assert {one[5].partition(":")[0] for one in told} == {"slurm"}
    assert sorted(line for line in ended.out.splitlines() if "sum" in line) == [
        *("[n1/0] sum 4.0", "[n1/1] sum 4.0", "[n2/2] sum 4.0", "[n2/3] sum 4.0"),
    ]
    assert "4 ranks on 2 hosts, CPU (TCP)" in ended.err


def test_the_nodes_of_a_job_can_be_checked_before_it(slurm: dict[str, str]) -> None:
    check = (sys.executable, "-m", "torch_xdist.launcher", "check", "--slurm", "-n", "2", "--json")
    done = subprocess.run(
        [*IN_SALLOC, *check], env=slurm, capture_output=True, text=True, timeout=90, cwd=ROOT
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found["ok"] and [host["name"] for host in found["hosts"]] == ["n1", "n2"]


def test_options_of_the_job_and_of_the_login_do_not_reach_the_steps(on_slurm: Callable) -> None:
    odd = {"SLURM_LABELIO": "1", "SLURM_NTASKS": "4", "SLURM_STDINMODE": "none", "SLURM_GPUS": "9"}
    body = "print(sorted(name for name in os.environ if name.startswith('SSH_')))"
    ended = on_slurm(body, SSH_CONNECTION="10.0.0.9 4711 192.0.2.7 22", **odd).end()
    assert ended.code == 0, ended.err
    assert ended.out.count("[]") == 4


@pytest.mark.timeout(600)
def test_two_nodes_train_a_model(on_slurm: Callable) -> None:
    ended = on_slurm(DIGITS).end(limit_s=280)
    assert ended.code == 0, ended.err
    assert "[n1/0]" in ended.out and "loss=" in ended.out


def test_a_rank_that_fails_is_named_with_its_node_and_ends_the_others(on_slurm: Callable) -> None:
    job = on_slurm("meet()\nif RANK == 3: fault(); 1 // 0\ntime.sleep(200)")
    ended = job.end()
    assert ended.code == 1
    assert "xla-run: rank 3 (host n2, pid " in ended.err and "ZeroDivisionError" in ended.err
    assert ended.after_fault_s < 15


def test_sigterm_reaches_the_ranks_of_all_nodes(on_slurm: Callable) -> None:
    job = all_on(on_slurm(SAVES))
    os.kill(launcher_of(job), signal.SIGTERM)
    ended = job.end()
    assert ended.code == 143 and "stopped by SIGTERM" in ended.err
    assert all((ended.folder / f"saved{rank}").exists() for rank in range(4))


def test_a_killed_launcher_leaves_nothing_on_any_node(on_slurm: Callable) -> None:
    job = all_on(on_slurm(WAITS))
    os.kill(launcher_of(job), signal.SIGKILL)
    job.process.wait(20)
    assert job.gone(5.0), f"survivors: {job.alive()}"


def cancel_step(slurm: dict[str, str], node: str) -> None:
    steps = asked(slurm, "squeue", "--steps", "--noheader", "--format=%i %N").splitlines()
    (step,) = (line.split()[0] for line in steps if line.endswith(f" {node}"))
    asked(slurm, "scancel", step)


def test_a_step_that_is_cancelled_loses_its_node(on_slurm: Callable, slurm: dict[str, str]) -> None:
    job = all_on(on_slurm(WAITS))
    cancel_step(slurm, "n2")
    ended = job.end(limit_s=30)
    assert ended.code == ExitCode.HOST
    # Slurm does not always get its own words through, the first of which say more.
    words = r"(slurmstepd.* CANCELLED AT |srun: error: n2: task 0: |srun ended with code )"
    lost = re.escape("xla-run: host n2 (ranks 2, 3) was lost: its stream ended; ")
    assert re.search(lost + words, ended.err), ended.err


def test_a_killed_srun_loses_its_node(on_slurm: Callable) -> None:
    job = all_on(on_slurm(WAITS))
    steps = [pid for pid in process_tree.children(launcher_of(job)) if "n2" in words_of(pid)]
    os.kill(steps[0], signal.SIGKILL)
    ended = job.end(limit_s=20)
    assert ended.code == ExitCode.HOST
    assert "xla-run: host n2 (ranks 2, 3) was lost: its stream ended" in ended.err


def test_a_node_that_is_not_heard_for_a_while_is_no_lost_node(on_slurm: Callable) -> None:
    job = all_on(on_slurm(silence.BODY, *silence.OPTIONS))
    (step,) = (pid for pid in process_tree.children(launcher_of(job)) if "n2" in words_of(pid))
    assert "[n2/3] went on" in silence.stopped_for_a_while(job, step).out


def test_what_srun_carries_cannot_be_read_along(on_slurm: Callable, tmp_path: Path) -> None:
    (tmp_path / "variables").write_text("API_KEY=hush-hush-hush\n")
    body = "print(len(os.environ['API_KEY']), 'a word of a rank')"
    with sniffed() as packets:
        ended = on_slurm(body, "--env-file", str(tmp_path / "variables")).end()
    assert ended.code == 0, ended.err
    assert ended.out.count("14 a word of a rank") == 4
    carried = b"".join(packets)
    # The agent's command line is there to be read, and nothing after it.
    assert b"agent_over_pipes" in carried
    assert b"hush-hush" not in carried and b"a word of a rank" not in carried


def words_of(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")


def test_a_job_that_is_over_has_no_steps(on_slurm: Callable) -> None:
    job = {"SLURM_JOB_ID": "99999", "SLURM_JOB_NODELIST": "n[1-2]"}
    ended = on_slurm(WAITS, before=(), **job).end()
    assert ended.code == ExitCode.HOST
    assert ": Slurm runs no step there: srun: error: " in ended.err
    assert "Invalid job id specified; see whether its job still runs, with squeue" in ended.err


def test_a_node_without_the_interpreter_is_named(on_slurm: Callable) -> None:
    ended = on_slurm(WAITS, "--python", "/no/python").end()
    assert ended.code == ExitCode.HOST
    assert ": /no/python cannot be started there: " in ended.err
    assert "/no/python: No such file or directory; install the same Python" in ended.err


class Submitted:
    """A job that `xla-run --slurm --nodes 2` has handed to Slurm."""

    def __init__(self, on_slurm: Callable, slurm: dict[str, str], body: str) -> None:
        self._slurm = slurm
        options = ("--nodes", "2", "--sbatch-options", "--output=out-of-job --time=5")
        self.job = on_slurm(body, *options, before=())
        self.job.process.wait(60)
        self.number = (self.job.folder / "out").read_text().strip()
        assert self.number.isdecimal(), self.job.texts()

    def wait_for(self, name: str, limit_s: float = 60.0) -> str:
        path, end_s = self.job.folder / name, time.monotonic() + limit_s
        while not path.exists():
            assert time.monotonic() < end_s, self.output()
            time.sleep(0.05)
        return path.read_text()

    def output(self) -> str:
        path = self.job.folder / "out-of-job"
        return path.read_text() if path.exists() else ""

    def end(self, limit_s: float = 30.0) -> str:
        """Wait for its end; the state and code that Slurm noted, such as "COMPLETED 0:0"."""
        end_s = time.monotonic() + limit_s
        while True:
            told = asked(self._slurm, "scontrol", "show", "job", self.number)
            facts = dict(word.split("=", 1) for word in told.split() if "=" in word)
            if facts["JobState"] not in ("PENDING", "RUNNING", "COMPLETING"):
                assert self.job.gone(5.0), f"survivors: {self.job.alive()}"
                return f"{facts['JobState']} {facts['ExitCode']}"
            assert time.monotonic() < end_s, self.output()
            time.sleep(0.1)


def test_a_new_job_runs_the_same_command_line(on_slurm: Callable, slurm: dict[str, str]) -> None:
    batch = Submitted(on_slurm, slurm, "print('rank', RANK, sys.argv[1:])")
    assert batch.end(60) == "COMPLETED 0:0", batch.output()
    assert "4 ranks on 2 hosts, CPU" in batch.output()
    assert batch.output().count("rank ") == 4


def test_the_signal_before_the_end_of_a_job_lets_the_ranks_save(
    on_slurm: Callable, slurm: dict[str, str]
) -> None:
    batch = Submitted(on_slurm, slurm, SAVES)
    for rank in range(4):
        batch.wait_for(f"on{rank}")
    asked(slurm, "scancel", "--batch", "--signal=TERM", batch.number)
    assert batch.end() == "FAILED 143:0", batch.output()
    assert all((batch.job.folder / f"saved{rank}").exists() for rank in range(4))
    assert "xla-run: stopped by SIGTERM" in batch.output()


def test_a_cancelled_job_leaves_nothing_and_its_ranks_save(
    on_slurm: Callable, slurm: dict[str, str]
) -> None:
    batch = Submitted(on_slurm, slurm, SAVES)
    for rank in range(4):
        batch.wait_for(f"on{rank}")
    asked(slurm, "scancel", batch.number)
    assert batch.end().startswith("CANCELLED"), batch.output()
    assert all((batch.job.folder / f"saved{rank}").exists() for rank in range(4))


@contextlib.contextmanager
def down(slurm: dict[str, str], node: str) -> Iterator[None]:
    """A node that Slurm holds for failed."""
    asked(slurm, "scontrol", "update", f"nodename={node}", "state=down", "reason=test")
    try:
        yield
    finally:
        asked(slurm, "scontrol", "update", f"nodename={node}", "state=resume")
        slurm_cluster.wait_until_idle(slurm)


def test_a_node_that_fails_is_lost_with_what_srun_says(
    on_slurm: Callable, slurm: dict[str, str]
) -> None:
    job = all_on(on_slurm(WAITS))
    with down(slurm, "n2"):
        code = job.process.wait(30)
        # Slurm does not speak to that node any more: its agent hears nothing, and ends its ranks.
        assert job.gone(15.0), f"survivors: {job.alive()}"
    assert code == ExitCode.HOST, job.texts()
    # Whichever of Slurm's words come first.
    words = r"(srun: error: Node failure|slurmstepd\S* error: .* DUE TO NODE FAILURE)"
    told = r"xla-run: host n2 \(ranks 2, 3\) was lost: its stream ended; "
    assert re.search(told + words, job.texts()), job.texts()


def test_code_is_shipped_to_the_nodes(
    start: Callable, slurm: dict[str, str], tmp_path: Path
) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text("import os; print(os.getcwd())")
    there = ("--env", f"XLA_RUN_STATE_DIR={tmp_path}/there", "-n", "1")
    words = ("--slurm", *there, "--ship", ".", "--", sys.executable, "train.py")
    before = ("env", "-C", str(code), *IN_SALLOC)
    ended = start("", *words, dash=False, before=before, env=slurm).end()
    assert ended.code == 0, ended.err
    assert "shipped 1 file (29 bytes) to hosts n1, n2: " in ended.err
    assert ended.out.count(f"{tmp_path}/there/code/jobs/") == 2
    assert not list((tmp_path / "there/code/jobs").iterdir())


def test_a_job_goes_on_without_a_node_that_fails(on_slurm: Callable, slurm: dict[str, str]) -> None:
    body = """
        attempt = os.environ["XLA_RUN_ATTEMPT"]
        say("on%d" % RANK)
        print("attempt", attempt, "world", os.environ["WORLD_SIZE"])
        say("began%s-%d" % (attempt, RANK), str(time.monotonic()))
        while attempt == "0":
            say("alive-%d" % RANK, str(time.monotonic()))
            time.sleep(0.02)
    """
    # The next attempt waits until nothing of this one can run any more.
    options = ("--min-hosts", "1", "--reconnect-within", "5", "--lost-after", "5")
    job = all_on(on_slurm(body, *options, before=(*IN_SALLOC, "--no-kill")))
    with down(slurm, "n2"):
        code = job.process.wait(60)
        assert job.gone(15.0), f"survivors: {job.alive()}"
    assert code == 0, job.texts()
    assert "; the job goes on with 1 of 2 hosts\n" in job.texts()
    assert "[n1/1] attempt 1 world 2\n" in job.texts()
    # The step that has ended here goes on there, until its agent has heard nothing for too long.
    last_s = float((job.folder / "alive-3").read_text())
    assert last_s < float((job.folder / "began1-0").read_text())
