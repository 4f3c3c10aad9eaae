"""Jobs at a real terminal: keys, prompts, and a screen that stops."""

import os
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from processes import kill_marked
from terminals import CTRL_C, CTRL_D, CTRL_Q, CTRL_S, CTRL_Z, Terminal

from torch_xdist.system import process_tree

XLA_RUN = (sys.executable, "-m", "torch_xdist.launcher")
# What is claimed is 5 s; a slow machine gets more.
GONE_S = 15.0


class Job(Terminal):
    """`xla-run OPTIONS python train.py` at a terminal of its own; or other words."""

    def __init__(self, folder: Path, body: str, options: tuple[str, ...], words: tuple[str, ...]):
        self.mark = f"XLA_RUN_TEST={uuid.uuid4().hex}"
        name, value = self.mark.split("=")
        (folder / "train.py").write_text("import os, sys, threading, time\n" + body)
        environ = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("XLA_RUN", "PJRT"))},
            "XLA_RUN_STATE_DIR": str(folder),
            "XLA_RUN_PREIMPORT": "",
            "TERM": "dumb",
            "PS1": "$ ",
            name: value,
        }
        command = words or (*XLA_RUN, *options, sys.executable, "train.py")
        super().__init__(command, folder, environ)

    def ranks(self) -> set[int]:
        """The living processes of the job but the one at the terminal."""
        return process_tree.marked(self.mark) - {self.process.pid}

    def gone(self, limit_s: float) -> bool:
        """Whether nothing but the program at the terminal is left in time; it is not read."""
        end_s = time.monotonic() + limit_s
        while self.ranks():
            if time.monotonic() > end_s:
                return False
            time.sleep(0.02)
        return True


@pytest.fixture
def at_terminal(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    """`at_terminal(body, "-n", "2")`, or `at_terminal(body, words=...)`."""
    jobs: list[Job] = []

    def begin(body: str, *options: str, words: tuple[str, ...] = ()) -> Job:
        folder = tmp_path / f"job{len(jobs)}"
        folder.mkdir(mode=0o700)
        jobs.append(Job(folder, body, options, words))
        return jobs[-1]

    yield begin
    for job in jobs:
        job.close()
        kill_marked(job.mark)


FLOOD = """
print("up", flush=True)
if os.environ["RANK"] == "1":
    time.sleep(3)
    os.kill(os.getpid(), 9)
while True:
    os.write(1, b"noise and more of it\\n" * 200)
    time.sleep(0.01)
"""


def test_a_terminal_that_stops_reading_delays_no_verdict(
    at_terminal: Callable[..., Job],
) -> None:
    job = at_terminal(FLOOD, "-n", "2")
    job.wait_for("[1] up")
    job.type(CTRL_S)
    began_s = time.monotonic()
    # Rank 1 dies after 3 s; nobody reads the screen, whose buffers are full long before.
    assert job.gone(3 + GONE_S)
    assert job.process.wait(10) == 137
    assert time.monotonic() - began_s < 3 + 2 * GONE_S


def test_what_a_terminal_has_missed_is_told_when_it_reads_again(
    at_terminal: Callable[..., Job],
) -> None:
    body = """
print("up", flush=True)
for _ in range(3000): os.write(1, b"x" * 3999 + b"\\n")
sys.stdin.readline() if os.environ["RANK"] == "0" else None
print("last words", flush=True)
"""
    job = at_terminal(body, "-n", "1")
    job.wait_for("up")
    job.type(CTRL_S)
    time.sleep(1.5)
    job.type(CTRL_Q)
    job.wait_for("lines not shown, they are in the logs]")
    job.type("\n")
    job.wait_for("last words")
    job.read_to_the_end()
    assert job.process.wait(10) == 0


def test_ctrl_c_at_a_terminal_that_stopped_ends_the_job(at_terminal: Callable[..., Job]) -> None:
    job = at_terminal(FLOOD.replace("time.sleep(3)", "time.sleep(600)"), "-n", "2")
    job.wait_for("[1] up")
    job.type(CTRL_S)
    time.sleep(1.0)
    job.type(CTRL_C)
    assert job.gone(GONE_S)
    assert job.process.wait(10) == 130


TICKS = """
from torch_xdist.progress import PROGRESS
for tick in range(200):
    PROGRESS.step = tick + 1
    time.sleep(0.1)
    if tick == 5: print("ticking", flush=True)
print("all done", flush=True)
"""


def test_ctrl_z_and_fg_are_harmless(at_terminal: Callable[..., Job]) -> None:
    job = at_terminal(TICKS, words=("bash", "--norc", "--noprofile", "-i"))
    options = "-n 2 --hang-warn 2 --hang-timeout 4 --lost-after 4 --beat-every 0.5"
    job.type(f"{' '.join(XLA_RUN)} {options} {sys.executable} train.py\n")
    job.wait_for("[1] ticking")
    job.type(CTRL_Z)
    job.wait_for("Stopped")
    before = len(job.ranks())
    # Longer than any limit of the job, and than gRPC waited for an answer once.
    time.sleep(12.0)
    assert len(job.ranks()) == before
    job.type("fg; echo code $?\n")
    job.wait_for("[1] all done")
    job.wait_for("code 0")
    assert "went on" not in job.everything


# ---- stdin -------------------------------------------------------------------------------------

DEBUGGED = """
def inner(x):
    breakpoint()
    return x
print("result", inner(6))
"""


def test_breakpoint_works_in_the_only_rank(at_terminal: Callable[..., Job]) -> None:
    job = at_terminal(DEBUGGED, "-n", "1")
    job.wait_for("(Pdb) ")
    job.type("p x * 7\n")
    job.wait_for("42\r\n")
    job.wait_for("(Pdb) ")
    job.type("c\n")
    assert "result 6" in job.read_to_the_end()
    assert job.process.wait(10) == 0


def test_breakpoint_works_in_a_command_that_is_no_rank(at_terminal: Callable[..., Job]) -> None:
    job = at_terminal(DEBUGGED)
    job.wait_for("(Pdb) ")
    job.type("c\n")
    assert "result 6" in job.read_to_the_end()


def test_breakpoint_works_in_the_rank_that_was_chosen(at_terminal: Callable[..., Job]) -> None:
    body = DEBUGGED.replace("breakpoint()", 'breakpoint() if os.environ["RANK"] == "1" else None')
    job = at_terminal(body, "-n", "2", "--stdin", "1")
    job.wait_for("[1] (Pdb) ")
    job.type("p x * 7\n")
    job.wait_for("42\r\n")
    job.type("c\n")
    shown = job.read_to_the_end()
    assert "result 6" in shown
    assert job.process.wait(10) == 0


SPAWNED = """
from torch_xdist.launcher.ways_in.spawn import {how}
def work(rank):
    breakpoint()
    return "ran"
print("got", {call})
"""


@pytest.mark.parametrize(
    ("how", "call"),
    [("spawn", "spawn(work, nprocs=1)"), ("launch", "launch(work, debug_single_process=True)")],
)
def test_breakpoint_works_in_a_function_with_one_rank(
    at_terminal: Callable[..., Job], how: str, call: str
) -> None:
    job = at_terminal(SPAWNED.format(how=how, call=call), words=(sys.executable, "train.py"))
    job.wait_for("(Pdb) ")
    job.type("p 6 * 7\n")
    job.wait_for("42\r\n")
    job.wait_for("(Pdb) ")
    job.type("c\n")
    assert "ran" in job.read_to_the_end()
    assert job.process.wait(10) == 0


def test_ctrl_d_is_the_end_of_the_ranks_input(at_terminal: Callable[..., Job]) -> None:
    job = at_terminal('print("got", sys.stdin.read().split())\n', "-n", "1")
    job.wait_for("1 rank on 1 host")
    job.type("a b\n")
    time.sleep(1.0)
    job.type(CTRL_D)
    job.wait_for("got ['a', 'b']")
