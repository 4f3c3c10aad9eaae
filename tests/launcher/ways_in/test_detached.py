"""`xla-run --detach`: jobs that run without their terminal."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from processes import kill
from terminals import terminal

from torch_xdist.launcher.facts.errors import ExitCode
from torch_xdist.launcher.viewing.detach import InBackground
from torch_xdist.system import process_tree

XLA_RUN = (sys.executable, "-m", "torch_xdist.launcher")
WAITS = """
print("first of", RANK, repr(sys.stdin.read()))
say("up%d" % RANK)
threading.Event().wait()
"""
SECRET = "5" * 40


def comes(path: Path, limit_s: float = 60.0) -> None:
    """Wait for a file that a rank of a job in the background writes."""
    end_s = time.monotonic() + limit_s
    while not path.exists():
        assert time.monotonic() < end_s, f"{path} did not appear"
        time.sleep(0.02)


def code(job) -> int:
    """How the command that was typed ended; the job may live."""
    return job.process.wait(60)


def test_the_prompt_is_back_once_the_job_is_up_and_says_how_to_look(start: Callable) -> None:
    job = start(WAITS, "-n", "2", "--job-id", "far", "--detach", stdin=b"typed")
    assert code(job) == 0, job.texts()
    assert (job.folder / "out").read_text() == "far\n"
    told = (job.folder / "err").read_text()
    assert "xla-run: job far runs in the background" in told and "xla-run stop far" in told
    for rank in (0, 1):
        comes(job.folder / f"up{rank}")
    shown = job.folder / "logs" / "far" / "screen.log"
    assert shown.stat().st_mode & 0o777 == 0o600
    # Its stdin is empty: what is typed is for nobody.
    assert job.ask("attach", "far", "--help") and "[1] first of 1 ''" in shown.read_text()
    assert "job far: stopped" in job.ask("stop", "far")
    assert job.gone(5.0), job.alive()


def test_a_job_in_the_background_outlives_its_terminal_and_a_hangup(start: Callable) -> None:
    # The folder, the script and the variables of a job; it is typed at a terminal below.
    job = start("", "-n", "1")
    job.end()
    (job.folder / "train.py").write_text(
        'import sys, time\nopen("up", "w")\ntime.sleep(3)\nprint("still here")\nsys.exit(9)\n'
    )
    name, mark = job.mark.split("=")
    environ = {**os.environ, "XLA_RUN_STATE_DIR": str(job.folder), name: mark}
    line = (
        f"{' '.join(XLA_RUN)} --detach --job-id far -n 1 {sys.executable} train.py; exec sleep 99"
    )
    with terminal(["sh", "-c", line], job.folder, environ) as typed:
        typed.wait_for("runs in the background")
        shell = typed.process
    shell.wait(10)
    (head,) = re.findall(r'"pid": (\d+)', job.ask("ps", "--json"))[:1]
    assert os.getsid(int(head)) not in (int(head), shell.pid)
    os.kill(int(head), signal.SIGHUP)
    done = subprocess.run(
        [*XLA_RUN, "attach", "far"], env=environ, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 9 and "still here" in done.stdout, done
    assert job.gone(5.0), job.alive()


def test_a_job_that_cannot_start_says_why_with_its_own_code(start: Callable) -> None:
    first = start(WAITS, "-n", "1", "--job-id", "far", "--detach")
    assert code(first) == 0
    state = {"XLA_RUN_STATE_DIR": str(first.folder)}
    second = start(WAITS, "-n", "1", "--job-id", "far", "--detach", env=state)
    assert code(second) == ExitCode.DUPLICATE
    assert "xla-run: job far: it is already running" in (second.folder / "err").read_text()
    assert (second.folder / "out").read_text() == ""
    assert second.gone(5.0)


def waiting(start: Callable, nnodes: str):
    """A job whose head waits for another node."""
    nodes = ("--nnodes", nnodes, "--node-rank", "0", "--master-addr", "127.0.0.1")
    nodes += ("--master-port", str(20000 + os.getpid() % 10000))
    job = start(
        WAITS, *nodes, "-n", "1", "--job-id", "far", "--detach", env={"XLA_RUN_SECRET": SECRET}
    )
    end_s = time.monotonic() + 30
    while not job.alive():
        assert time.monotonic() < end_s
        time.sleep(0.05)
    time.sleep(1.5)
    assert job.process.poll() is None, job.texts()
    return job


def test_ctrl_c_before_the_job_is_up_stops_it(start: Callable) -> None:
    job = waiting(start, "2")
    job.process.send_signal(signal.SIGINT)
    assert job.end(20.0).code == ExitCode.INTERRUPTED


def test_a_head_that_is_killed_before_the_job_is_up_is_told(start: Callable) -> None:
    job = waiting(start, "2")
    for pid in process_tree.marked(job.mark) - {job.process.pid}:
        kill(pid)
    ended = job.end(20.0)
    assert ended.code == ExitCode.HOST
    assert "job far: its launcher ended before the job was up, without a word" in ended.err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("-n", "2", "--stdin", "1"), "--stdin 1: with --detach no rank can read this terminal"),
        (("--slurm", "--nodes", "2", "-n", "1"), "--detach: a job of --slurm --nodes waits"),
        (
            ("--nnodes", "2", "--node-rank", "1", "--master-addr", "a", "-n", "1"),
            "--detach: the job is that of node 0, not of node 1",
        ),
    ],
)
def test_what_cannot_be_in_the_background_is_refused(
    run: Callable, options: tuple[str, ...], words: str
) -> None:
    ended = run("", *options, "--detach")
    assert ended.code == ExitCode.USAGE and words in ended.err


def test_a_job_that_is_not_up_yet_is_found_and_can_be_stopped(start: Callable) -> None:
    job = waiting(start, "2:3")
    job.process.kill()
    job.process.wait()
    assert re.search(r"far +starting +\d ", job.ask("ps"))
    assert job.ask("stop", "far") == "job far: stopped\n"
    assert job.gone(5.0), job.alive()


def test_an_error_in_the_head_is_told_with_its_words() -> None:
    def fails(tell: Callable[..., None]) -> int:
        tell("note", text="begun")
        raise KeyError("wrong")

    told = list(InBackground(fails).events())
    assert [event for event, _ in told] == ["note", "end"]
    assert told[1][1]["exit_code"] == ExitCode.INTERNAL
    assert told[1][1]["text"] == "the launcher failed: KeyError('wrong')"
