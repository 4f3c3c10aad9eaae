"""Ranks that do not go on: what is said about them, and when the job is killed for it."""

import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

TWO = ("--nprocs", "2", "--beat-every", "0.2")
# A frame in a file of jax: what a rank looks like that waits for a collective.
_WAIT = """
from torch_xdist.progress import PROGRESS
code = "import time\\ndef wait():\\n    time.sleep(600)"
exec(compile(code, "/any/jax/device.py", "exec"), globals())
"""


def _script(body: str) -> str:
    return _WAIT + textwrap.dedent(body)


def test_a_rank_asleep_in_python_is_named_with_its_line_and_killed_if_asked(run: Callable) -> None:
    ended = run(
        _script(
            """
            meet()
            PROGRESS.step, PROGRESS.collective = 3, 4 - RANK
            def fetch_batch():
                time.sleep(600)
            wait() if RANK == 0 else fetch_batch()
            """
        ),
        *(*TWO, "--hang-warn", "1", "--hang-timeout", "2.5"),
    )
    assert ended.code == 76
    assert re.search(r"no rank went on for 1 s: rank 1 is in step 4 \(train\.py:\d+\); ", ended.err)
    assert "rank 0 waits in a collective #4" in ended.err
    assert re.search(r"xla-run: rank 1 \(host .*\) did not go on", ended.err)
    assert "stack of rank 1:" in ended.err and "in fetch_batch" in ended.err
    assert "in fetch_batch" in ended.log(1)
    assert ended.seconds < 30


def test_a_stopped_process_is_seen_and_killed_if_asked(run: Callable) -> None:
    ended = run(
        _script(
            """
            meet()
            PROGRESS.step, PROGRESS.collective = 3, 4
            time.sleep(0.5)
            if RANK == 1:
                os.kill(os.getpid(), signal.SIGSTOP)
            wait()
            """
        ),
        *(*TWO, "--hang-warn", "1", "--hang-timeout", "2", "--lost-after", "1"),
    )
    assert ended.code == 76
    assert "rank 1 is stopped (T) after step 3" in ended.err


def test_a_long_compilation_is_announced_and_no_hang(run: Callable) -> None:
    ended = run(
        _script(
            """
            meet()
            PROGRESS.compiling = True
            time.sleep(2.5)
            PROGRESS.compiling, PROGRESS.step = False, 1
            """
        ),
        *(*TWO, "--hang-warn", "1", "--hang-timeout", "1.5", "--notice-after", "1"),
    )
    assert ended.code == 0
    assert "no rank went on" not in ended.err
    assert re.search(r"ranks 0, 1 compile for step 1 \(train\.py:\d+\)", ended.err)


def test_a_rank_that_says_nothing_of_steps_is_left_alone(run: Callable) -> None:
    ended = run("time.sleep(2.5)", *TWO, "--hang-warn", "1", "--hang-timeout", "1.5")
    assert ended.code == 0 and "went on" not in ended.err


def test_a_rank_that_leaves_while_others_wait_is_named_and_fails_the_job(run: Callable) -> None:
    ended = run(
        _script(
            """
            meet()
            PROGRESS.step, PROGRESS.collective = 58, 58 + (RANK == 0)
            if RANK == 1:
                fault()
            else:
                wait()
            """
        ),
        *(*TWO, "--exit-barrier", "4"),
    )
    assert ended.code == 1
    assert "rank 1 left the loop after step 58; rank 0 waits in a collective #59" in ended.err
    assert re.search(r"xla-run: rank 1 \(host .*\) finished early", ended.err)
    assert ended.after_fault_s < 15


def test_ranks_whose_programs_differ_are_named(run: Callable) -> None:
    ended = run(
        _script(
            """
            meet()
            PROGRESS.step, PROGRESS.collective = 1, 7
            PROGRESS.fingerprint = "aa11" if RANK == 0 else "bb22"
            PROGRESS.waits_for = (1 - RANK,)
            time.sleep(5)
            """
        ),
        *TWO,
    )
    assert "programs differ at collective #7: rank 0 runs aa11; rank 1 runs bb22" in ended.err


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


def test_the_stacks_of_all_ranks_can_be_asked_for(start: Callable) -> None:
    job = start(
        """
        def inner_loop():
            say("ready%d" % RANK)
            time.sleep(600)
        inner_loop()
        """,
        *("--nprocs", "2", "--job-id", "stacked"),
    )
    job.wait_for("ready0")
    job.wait_for("ready1")

    def ask(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "torch_xdist.launcher", *words],
            env={**os.environ, "XLA_RUN_STATE_DIR": str(job.folder)},
            capture_output=True,
            text=True,
            timeout=30,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    table = ask("ps").splitlines()
    assert table[0].split() == ["JOB", "STATE", "RANKS", "UP", "STEP", "ATTEMPT", "FOR", "COMMAND"]
    assert table[1].split()[:6] == ["stacked", "running", "2", "2", "0", "0"]
    stacks = ask("stack", "stacked")
    assert stacks.count("in inner_loop") == 2 and "rank 1:" in stacks
    assert ask("stop", "stacked", "--now").strip() == "job stacked: stopped"
    assert job.end(20).code == 143
    assert "in inner_loop" in ask("logs", "stacked")
