"""Who follows a job ends with the reader of what it prints, also while the job prints nothing."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from torch_xdist.launcher.viewing import reader

XLA_RUN = (sys.executable, "-m", "torch_xdist.launcher")
PRINTS_ONCE = """
print("the only line", flush=True)
say("up%d" % RANK)
while not os.path.exists(os.path.join(FOLDER, "stop")):
    time.sleep(0.05)
"""


def shown(job: Any, words: Sequence[str]) -> "subprocess.Popen[str]":
    """A command that has printed a line and then has no reader any more."""
    environ = {**os.environ, "XLA_RUN_STATE_DIR": str(job.folder)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen([*XLA_RUN, *words], env=environ, text=True, **pipes)
    assert process.stdout is not None and "the only line" in process.stdout.readline()
    assert process.poll() is None
    process.stdout.close()
    return process


def test_logs_and_attach_end_with_their_reader_and_the_job_runs_on(start: Callable) -> None:
    job = start(PRINTS_ONCE, "-n", "1", "--job-id", "quiet")
    job.wait_for("up0")
    for words in (
        ("logs", "-f", "quiet"),
        ("attach", "--from-start", "quiet"),
    ):
        process = shown(job, words)
        began_s = time.monotonic()
        assert process.wait(20) == reader.NO_READER
        assert time.monotonic() - began_s < 15
        assert process.stderr is not None and "Traceback" not in process.stderr.read()
        process.stderr.close()
    (job.folder / "stop").write_text("x")
    assert job.end().code == 0


def test_a_file_and_a_stdout_that_is_closed_have_no_reader_to_wait_for(tmp_path: Path) -> None:
    code = (
        "import time; from torch_xdist.launcher.viewing import reader;"
        "reader.leave_with(); time.sleep(0.3); raise SystemExit(3)"
    )
    for to in (f">{tmp_path}/out", ">&-", ">/dev/null"):
        done = subprocess.run(["sh", "-c", f'exec "$0" -c "{code}" {to}', sys.executable])
        assert done.returncode == 3


def test_a_process_that_does_not_leave_in_time_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    read, write = os.pipe()
    os.close(read)
    did: list[object] = []
    monkeypatch.setattr(reader, "_LEAVE_S", 0.0)
    monkeypatch.setattr(os, "_exit", did.append)
    reader._watch(write, lambda: did.append("left"))
    os.close(write)
    assert did == ["left", reader.NO_READER]
