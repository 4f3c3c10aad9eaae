"""`xla-run` as a user sees it: a live line on a terminal, events in a file, words completed."""

import json
import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

XLA_RUN = (sys.executable, "-m", "torch_xdist.launcher")
STEPS = """
import os, time
from torch_xdist.progress import PROGRESS
for step in range(1, 21):
    PROGRESS.step = step // 2 if os.environ["RANK"] == "1" else step  # behind, whoever began first
    if step == 5: print("half way")
    time.sleep(0.1)
"""


def test_a_terminal_has_one_live_line_below_the_ranks_lines(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(STEPS)
    ours, theirs = pty.openpty()
    words = [*XLA_RUN, "--nprocs", "2", "--beat-every", "0.2", "--", sys.executable, "train.py"]
    job = subprocess.Popen(
        words,
        cwd=tmp_path,
        env={**os.environ, "XLA_RUN_STATE_DIR": str(tmp_path), "XLA_RUN_PREIMPORT": ""},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    shown = _read_all(ours, 60.0)
    assert job.wait(10) == 0
    status = r"2/2 ranks up, step \d+, [\d.e-]+ s/step, slowest rank 1 \(\d+\)"
    assert len(set(re.findall(status, shown))) >= 3, shown
    # Every other line is written where the live line stood, and the live line again below it.
    assert re.search(r"\r\x1b\[K\[[01]\] half way\r\n2/2 ranks up", shown), shown
    assert shown.endswith("\r\x1b[K"), "no live line is left at the end"


def _read_all(fd: int, limit_s: float) -> str:
    end_s, data = time.monotonic() + limit_s, b""
    while time.monotonic() < end_s:
        if not select.select([fd], [], [], 1.0)[0]:
            continue
        try:
            part = os.read(fd, 4096)
        except OSError:
            break
        if not part:
            break
        data += part
    os.close(fd)
    return data.decode()


def test_events_are_json_lines_in_order_with_one_record_per_failed_rank(run: Callable) -> None:
    ended = run(
        "meet()\nif RANK == 1: raise ValueError('bad batch')\ntime.sleep(60)", "--nprocs", "2"
    )
    assert ended.code == 1
    (path,) = ended.folder.glob("logs/*/events.jsonl")
    events = [json.loads(line) for line in path.read_text().splitlines()]
    names = [event["event"] for event in events]
    assert [n for n in names if n in ("attempt", "start", "arrived", "failure", "end")] == [
        *("attempt", "start", "arrived", "failure", "end")
    ]
    times = [event["time"] for event in events]
    assert times == sorted(times) and abs(time.time() - times[-1]) < 60
    record = events[names.index("failure")]["record"]
    assert (record["rank"], record["kind"], record["type"]) == (1, "exception", "ValueError")
    assert "bad batch" in record["traceback"] and record["pid"] and record["host"]
    assert events[-1]["exit_code"] == 1 and "token" not in path.read_text()


def test_a_variable_for_the_ranks_reaches_them_and_nobody_else(run: Callable) -> None:
    ended = run("print(os.environ['COLOUR'])", "--nprocs", "2", "--env", "COLOUR=a=b")
    assert sorted(ended.out.splitlines()) == ["[0] a=b", "[1] a=b"]


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("xla-run st", {"stack", "stop"}),
        ("xla-run --hang-t", {"--hang-timeout"}),
        ("xla-run run --max-r", {"--max-restarts"}),
        ("xla-run stop night", {"nightly"}),
    ],
)
def test_a_shell_completes_commands_options_and_jobs(
    start: Callable, tmp_path: Path, line: str, found: set[str]
) -> None:
    state = tmp_path
    if "night" in line:
        job = start("say('ready'); time.sleep(60)", "--nprocs", "1", "--job-id", "nightly")
        job.wait_for("ready")
        state = job.folder
    done = subprocess.run(
        XLA_RUN,
        env={
            **os.environ,
            "XLA_RUN_STATE_DIR": str(state),
            "_XLA_RUN_COMPLETE": "bash_complete",
            "COMP_WORDS": line,
            "COMP_CWORD": str(len(line.split()) - 1),
        },
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert {row.split(",")[1] for row in done.stdout.splitlines()} == found, done.stderr
