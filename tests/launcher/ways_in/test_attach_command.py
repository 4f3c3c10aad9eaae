"""`xla-run attach`: more than one look at a job."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from torch_xdist.launcher.facts import registry
from torch_xdist.launcher.facts.errors import ExitCode, UsageError
from torch_xdist.launcher.ways_in import attach_command

XLA_RUN = (sys.executable, "-m", "torch_xdist.launcher")
GOES_ON = """
for number in range(3):
    print("line", number, flush=True)
say("up%d" % RANK)
while not os.path.exists(os.path.join(FOLDER, "go")):
    time.sleep(0.05)
print("the last", flush=True)
sys.exit(7)
"""


def viewer(job, *options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*XLA_RUN, "attach", "shared", *options],
        env={**os.environ, "XLA_RUN_STATE_DIR": str(job.folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def begun(start: Callable, body: str = GOES_ON):
    job = start(body, "-n", "2", "--job-id", "shared")
    job.wait_for("up0")
    job.wait_for("up1")
    return job


def read_until(process: subprocess.Popen[str], text: str) -> list[str]:
    """Lines of its stdout, to the one with this text."""
    assert process.stdout is not None
    found = [line := process.stdout.readline()]
    while text not in line:
        assert line, (found, process.stderr and process.stderr.read())
        found.append(line := process.stdout.readline())
    return found


def test_viewers_show_what_the_terminal_shows_and_end_with_the_jobs_code(start: Callable) -> None:
    job = begun(start)
    end_s = time.monotonic() + 20
    while (job.folder / "out").read_text().count("line 2") < 2:
        assert time.monotonic() < end_s, job.texts()
        time.sleep(0.05)
    whole, newest = viewer(job, "--from-start"), viewer(job, "-n", "2", "--json")
    hello = read_until(newest, '"hello"')
    read_until(whole, "line 2")
    (job.folder / "go").touch()
    # Not `communicate`, which knows nothing of what `readline` has in its buffer.
    out, err, told = (pipe.read() for pipe in (whole.stdout, whole.stderr, newest.stdout))
    ended = job.end()
    assert whole.wait(20) == newest.wait(20) == 7
    assert ended.code == 7 and "the last" in out and "2 ranks on 1 host" in err
    assert err.split("xla-run: ")[-1] == ended.err.split("xla-run: ")[-1]
    events = [json.loads(line) for line in (*hello, *told.splitlines())]
    lines = [line for event in events if event["event"] == "log" for line in event["lines"]]
    # The last two of both ranks together.
    assert lines[1:] == ["line 2", "the last", "the last"]
    assert events[-1]["event"] == "end" and not {"token", "address"} & set().union(*events)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGHUP, 129)])
def test_ctrl_c_ends_the_look_and_not_the_job(start: Callable, number: int, code: int) -> None:
    job = begun(start)
    look = viewer(job, "--from-start")
    read_until(look, "line 2")
    look.send_signal(number)
    _, err = look.communicate(timeout=20)
    assert look.returncode == code
    assert "xla-run: detached from job shared, which runs on" in err
    assert job.process.poll() is None and "shared" in job.ask("ps")
    (job.folder / "go").touch()
    assert job.end().code == 7


def test_a_viewer_that_is_stopped_holds_nobody_up(start: Callable) -> None:
    job = begun(
        start, "say('up%d' % RANK)\nmeet()\n" + GOES_ON.replace("range(3)", "range(200000)")
    )
    look = viewer(job, "--from-start")
    time.sleep(0.5)
    look.send_signal(signal.SIGSTOP)
    (job.folder / "go").touch()
    try:
        assert job.end(60.0).code == 7
    finally:
        look.send_signal(signal.SIGKILL)
        look.communicate(timeout=20)


def test_a_launcher_that_is_killed_is_told(start: Callable) -> None:
    job = begun(start)
    look = viewer(job, "--from-start")
    read_until(look, "line 2")
    job.process.kill()
    _, err = look.communicate(timeout=20)
    assert look.returncode == ExitCode.HOST
    assert "job shared: its launcher is gone without a word, so it was killed" in err


def test_a_job_that_is_just_starting_cannot_be_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "find", lambda *_: {"job": "new"})
    with pytest.raises(UsageError, match="job new: it is just starting, or cannot be looked at"):
        attach_command.attach.main(["new"], standalone_mode=False)
