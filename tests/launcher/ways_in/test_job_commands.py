"""`xla-run ps | logs | stop`, of jobs that run, that do not answer, and that have ended."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from terminals import Terminal

from torch_xdist.launcher.facts import registry
from torch_xdist.launcher.on_host.log_files import TIME_MARK
from torch_xdist.launcher.ways_in import job_commands
from torch_xdist.system.process import Process

XLA_RUN = (sys.executable, "-m", "torch_xdist.launcher")
TWO = ("--nprocs", "2")
WAITS = """
print("first of", RANK); print("second of", RANK); print("third of", RANK)
say("up%d" % RANK)
threading.Event().wait()
"""


def up(job) -> None:
    job.wait_for("up0")
    job.wait_for("up1")


def rows(job, *options: str) -> list[dict]:
    return [json.loads(line) for line in job.ask("ps", "--json", *options).splitlines()]


# ---- ps ----------------------------------------------------------------------------------------


def test_jobs_are_listed_as_json_while_they_run_and_with_their_code_afterwards(
    start: Callable,
) -> None:
    job = start(WAITS, *TWO, "--job-id", "nightly")
    up(job)
    (row,) = rows(job)
    assert (row["job"], row["state"], row["ranks"], row["attempt"]) == ("nightly", "running", 2, 0)
    assert row["up"] == 2 and row["exit_code"] is None and len(row["pids"]) == 2
    assert row["pid"] == job.process.pid and row["argv"][-1].endswith("train.py")
    assert "token" not in row
    job.process.terminate()
    assert job.end().code == 143
    assert rows(job) == []
    (row,) = rows(job, "--all")
    assert (row["state"], row["exit_code"]) == ("ended", 143) and row["ended"] > row["started"]
    assert re.search(r"nightly +ended \(143\) +2 ", job.ask("ps", "--all"))


def test_a_job_whose_launcher_was_killed_is_called_so(start: Callable) -> None:
    job = start(WAITS, *TWO)
    up(job)
    job.process.kill()
    job.process.wait()
    (row,) = rows(job, "--all")
    assert row["state"] == "killed"


def test_a_launcher_that_does_not_answer_hides_no_other_job(start: Callable) -> None:
    silent = start(WAITS, *TWO, "--job-id", "silent")
    up(silent)
    state = {"XLA_RUN_STATE_DIR": str(silent.folder)}
    well = start(WAITS, *TWO, "--job-id", "well", env=state)
    up(well)
    silent.process.send_signal(signal.SIGSTOP)
    asked_s = time.monotonic()
    states = {row["job"]: row["state"] for row in rows(silent)}
    assert states == {"silent": "silent", "well": "running"}
    assert time.monotonic() - asked_s < 3 * job_commands._STATUS_LIMIT_S
    silent.process.send_signal(signal.SIGCONT)


# ---- stop --------------------------------------------------------------------------------------

SAVES = """
def save(*_):
    time.sleep(1)
    say("saved%d" % RANK)
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
"""


def test_stop_returns_when_nothing_of_the_job_is_left(start: Callable) -> None:
    job = start(SAVES + WAITS, *TWO, "--job-id", "stopped")
    up(job)
    with Process(job.process.pid) as launcher:
        assert job.ask("stop", "stopped") == "job stopped: stopped\n"
        assert launcher.ended()
    assert not job.alive()
    assert (job.folder / "saved0").exists() and (job.folder / "saved1").exists()
    assert job.end().code == 143


def test_stop_need_not_wait(start: Callable) -> None:
    job = start(SAVES + WAITS, *TWO, "--job-id", "stopped")
    up(job)
    assert job.ask("stop", "stopped", "--no-wait") == "job stopped: told to stop\n"
    assert job.process.poll() is None
    assert job.end().code == 143


def test_a_job_that_outlives_the_limit_of_its_stop_is_an_error(start: Callable) -> None:
    job = start("signal.signal(signal.SIGTERM, signal.SIG_IGN)" + WAITS, *TWO, "--job-id", "deaf")
    up(job)
    words = [*XLA_RUN, "stop", "deaf", "--limit", "1"]
    environ = {**os.environ, "XLA_RUN_STATE_DIR": str(job.folder)}
    done = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=30)
    assert done.returncode == 73
    assert "job deaf: told to stop, but it still runs; try --now" in done.stderr
    job.ask("stop", "deaf", "--now")
    assert job.end().code == 143


def test_a_stop_waits_as_long_as_its_job_was_given(start: Callable) -> None:
    # Less than the 20 s beyond the grace, and far from the 30 s of a job without --graceful-stop.
    deaf = "signal.signal(signal.SIGTERM, signal.SIG_IGN)" + WAITS
    job = start(deaf, *TWO, "--job-id", "deaf", "--graceful-stop", "1")
    up(job)
    record = json.loads((job.folder / "jobs" / "deaf.job.json").read_text())
    assert record["graceful_s"] == 1.0
    assert job.ask("stop", "deaf", "--limit", "2m") == "job deaf: stopped\n"
    assert job.end().code == 143


def test_a_limit_that_is_no_duration_is_refused(tmp_path: Path) -> None:
    environ = {**os.environ, "XLA_RUN_STATE_DIR": str(tmp_path)}
    words = [*XLA_RUN, "stop", "any", "--limit", "soon"]
    done = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=30)
    assert done.returncode == 2 and "--limit: 'soon'" in done.stderr


# ---- logs --------------------------------------------------------------------------------------


def test_the_last_lines_of_each_rank_or_of_one(start: Callable) -> None:
    job = start(WAITS, *TWO, "--job-id", "told")
    up(job)
    end_s = time.monotonic() + 10
    while job.ask("logs", "told").count("third") < 2:
        assert time.monotonic() < end_s
    last = "[0] second of 0\n[0] third of 0\n[1] second of 1\n[1] third of 1\n"
    assert job.ask("logs", "told", "-n", "2") == last
    assert job.ask("logs", "told", "--rank", "1", "--tail", "1") == "third of 1\n"
    assert job.ask("logs", "told", "--tail", "0") == ""
    assert job.ask("logs", "told", "--since", "10m").count("first") == 2
    assert job.ask("logs", "told", "--since", "2100-01-01") == ""
    job.process.terminate()
    job.end()
    assert job.ask("logs", "told", "-n", "2") == last, "after its end, too"


def test_a_job_is_followed_in_whole_lines_to_its_end(start: Callable) -> None:
    body = """
    os.write(1, b"half ")
    say("half%d" % RANK)
    while not os.path.exists(FOLDER + "/go"): time.sleep(0.01)
    os.write(1, b"of it\\nno end")
    """
    job = start(body, *TWO, "--job-id", "followed")
    job.wait_for("half0")
    job.wait_for("half1")
    words = [*XLA_RUN, "logs", "followed", "--follow"]
    environ = {**os.environ, "XLA_RUN_STATE_DIR": str(job.folder)}
    follower = subprocess.Popen(words, env=environ, stdout=subprocess.PIPE, text=True)
    time.sleep(2 * job_commands._FOLLOW_S)
    (job.folder / "go").write_text("x")
    assert job.end().code == 0
    shown, _ = follower.communicate(timeout=30)
    lines = ["[0] half of it", "[0] no end", "[1] half of it", "[1] no end"]
    assert sorted(shown.splitlines()) == lines and follower.returncode == 0


@pytest.fixture
def followed() -> Iterator[Callable[..., subprocess.Popen]]:
    """`followed(job)`: `xla-run logs JOB -f` of it, which has begun."""
    followers = []

    def follow(job) -> subprocess.Popen:
        follower = subprocess.Popen(
            [*XLA_RUN, "logs", "followed", "-f"],
            env={**os.environ, "XLA_RUN_STATE_DIR": str(job.folder)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        followers.append(follower)
        return follower

    yield follow
    for follower in followers:
        follower.kill()
        follower.wait()
        follower.stdout.close()
        follower.stderr.close()


WAITS_FOR_GO = """
def wait_for(name):
    while not os.path.exists(FOLDER + "/" + name): time.sleep(0.01)
"""


def shown(follower: subprocess.Popen) -> list[str]:
    out, err = follower.communicate(timeout=60)
    assert follower.returncode == 0, err
    return sorted(out.splitlines())


def test_a_rank_that_prints_late_is_followed_too(start: Callable, followed: Callable) -> None:
    body = "if RANK: say('quiet'); wait_for('go')\nprint('from', RANK)\nwait_for('go')"
    job = start(WAITS_FOR_GO + body, *TWO, "--job-id", "followed")
    job.wait_for("logs/followed/attempt-0/rank-0.log")
    job.wait_for("quiet")
    follower = followed(job)
    assert follower.stdout.readline() == "[0] from 0\n"
    (job.folder / "go").write_text("x")
    assert job.end().code == 0
    assert shown(follower) == ["[1] from 1"]


def test_a_job_that_has_said_nothing_yet_is_waited_for(start: Callable, followed: Callable) -> None:
    body = "say('up%d' % RANK); wait_for('go'); print('from', RANK)"
    job = start(WAITS_FOR_GO + body, *TWO, "--job-id", "followed")
    up(job)
    follower = followed(job)
    with pytest.raises(subprocess.TimeoutExpired):
        follower.wait(3.0)
    (job.folder / "go").write_text("x")
    assert job.end().code == 0
    assert shown(follower) == ["[0] from 0", "[1] from 1"]


STARTS_SLOWLY = """
import os, pathlib, sys, time
from torch_xdist.launcher.facts.registry import Registration
folder = pathlib.Path(sys.argv[1])
job = Registration(folder, "followed")
job.publish(ranks=1)
while not (folder / "go").exists(): time.sleep(0.01)
logs = folder / "logs" / "followed" / "attempt-0"
logs.mkdir(parents=True)
(logs / "rank-0.log").write_text("at last\\n")
time.sleep(2)
"""


def test_a_job_that_has_made_no_log_folder_yet_is_waited_for(
    tmp_path: Path, followed: Callable
) -> None:
    tmp_path.chmod(0o700)
    job = subprocess.Popen([sys.executable, "-c", STARTS_SLOWLY, str(tmp_path)])
    while not registry.running(tmp_path):
        time.sleep(0.02)
    follower = followed(SimpleNamespace(folder=tmp_path))
    with pytest.raises(subprocess.TimeoutExpired):
        follower.wait(2.0)
    (tmp_path / "go").write_text("x")
    assert shown(follower) == ["at last"] and job.wait(20) == 0


def test_a_job_is_followed_into_its_next_attempt(start: Callable, followed: Callable) -> None:
    body = """
attempt = os.environ["XLA_RUN_ATTEMPT"]
print("attempt", attempt)
wait_for("go")
sys.exit(3 if attempt == "0" else 0)
"""
    job = start(WAITS_FOR_GO + body, "-n", "1", "--max-restarts", "1", "--job-id", "followed")
    job.wait_for("logs/followed/attempt-0/rank-0.log")
    follower = followed(job)
    assert follower.stdout.readline() == "attempt 0\n"
    (job.folder / "go").write_text("x")
    assert job.end().code == 0
    assert shown(follower) == ["attempt 1"]


def test_a_beginning_of_several_names_is_no_job(start: Callable) -> None:
    first = start("print('one')", "-n", "1", "--job-id", "night-1")
    assert first.end().code == 0
    state = {"XLA_RUN_STATE_DIR": str(first.folder)}
    assert start("print('two')", "-n", "1", "--job-id", "night-2", env=state).end().code == 0
    words = [*XLA_RUN, "logs", "night"]
    environ = {**os.environ, **state}
    done = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout) == (2, "")
    assert "several jobs start with it: night-1, night-2; give one name" in done.stderr
    assert first.ask("logs", "night-1") == "one\n"


def test_what_ranks_have_written_moves_no_cursor_of_a_terminal(start: Callable) -> None:
    forged = "print('\\x1b[2K\\x1b[1A[0] forged \\x1b[31mred\\x1b[0m')"
    job = start(
        forged + "\nmeet(); say('ready'); threading.Event().wait()", *TWO, "--job-id", "told"
    )
    job.wait_for("ready")
    environ = {**os.environ, "XLA_RUN_STATE_DIR": str(job.folder)}
    shown = {}
    for command in ("logs", "stack"):
        terminal = Terminal([*XLA_RUN, command, "told"], job.folder, environ)
        shown[command] = terminal.read_to_the_end()
        terminal.close()
    assert "[1] [0] forged \x1b[31mred\x1b[0m" in shown["logs"]
    assert "rank 1:" in shown["stack"]
    assert not any("\x1b[2K" in text or "\x1b[1A" in text for text in shown.values())
    assert "\x1b[2K" in (job.folder / "logs/told/attempt-0/rank-1.log").read_text()


def test_each_attempt_has_its_own_log(start: Callable) -> None:
    job = start(
        "print('attempt', os.environ['XLA_RUN_ATTEMPT'])\n"
        "if os.environ['XLA_RUN_ATTEMPT'] == '0': raise ValueError('once')",
        *("-n", "1", "--max-restarts", "1", "--job-id", "twice"),
    )
    assert job.end().code == 0
    assert job.ask("logs", "twice") == "attempt 1\n"
    # What a rank writes to stdout and stderr comes through two pipes, in no certain order.
    first = job.ask("logs", "twice", "--attempt", "0").splitlines()
    assert "attempt 0" in first and "ValueError: once" in first and "attempt 1" not in first
    words = [*XLA_RUN, "logs", "twice", "--attempt", "7"]
    environ = {**os.environ, "XLA_RUN_STATE_DIR": str(job.folder)}
    done = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=30)
    assert done.returncode == 2
    assert re.search(r"job 'twice': no logs of attempt 7 in .*; there: 0, 1", done.stderr)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The logs of ranks 0, 2 and 10."""
    for rank in (10, 0, 2):
        (tmp_path / f"rank-{rank}.log").write_text("".join(f"line {n}\n" for n in range(100)))
    return tmp_path


def test_ranks_come_in_the_order_of_their_numbers(folder: Path) -> None:
    paths = job_commands._log_paths(folder, None)
    assert [path.name for path in paths] == ["rank-0.log", "rank-2.log", "rank-10.log"]


def test_a_log_of_any_size_is_read_in_pages(folder: Path, monkeypatch) -> None:
    monkeypatch.setattr(job_commands, "_PAGE_BYTES", 64)
    file = job_commands._LogFile(folder / "rank-0.log")
    pages = list(file.pages(to_the_end=True))
    assert len(pages) > 5 and all(page.endswith(b"\n") for page in pages)
    assert b"".join(pages) == (folder / "rank-0.log").read_bytes()
    file = job_commands._LogFile(folder / "rank-0.log")
    file.start(20, None)
    last = b"".join(b"line %d\n" % n for n in range(80, 100))
    assert b"".join(file.pages(to_the_end=True)) == last


def test_what_was_written_since_a_time_begins_at_its_mark(folder: Path) -> None:
    marks = b"".join(TIME_MARK.pack(1000.0 + n, 7 * n) for n in range(5))
    (folder / "rank-0.times").write_bytes(marks + b"half a mark")
    file = job_commands._LogFile(folder / "rank-0.log")
    # What was written in the second before may belong to it.
    file.start(None, 1003.0)
    assert file._at == 14
    file.start(None, 0.0)
    assert file._at == 0
