"""`xla-run`'s words, in and out, without a job."""

import io
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from torch_xdist.launcher import commands, job, report
from torch_xdist.launcher.cli import cli
from torch_xdist.launcher.errors import DuplicateJobError, PreflightError, UsageError
from torch_xdist.launcher.records import Failure
from torch_xdist.launcher.screen import Screen, status_text
from torch_xdist.launcher.settings import TIMEOUTS


@pytest.fixture
def script(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text("pass")
    return tmp_path


def test_a_script_of_this_python_runs_warm(script: Path) -> None:
    for words in (
        [sys.executable, "train.py", "--lr", "1"],
        [sys.executable, "-u", "train.py", "--lr", "1"],
    ):
        found = commands.read(words, str(script))
        assert found == commands.Command(
            "script", (str(script / "train.py"), "--lr", "1"), str(script)
        )
    assert commands.read(["train.py"], str(script)).kind == "script"


def test_a_module_of_this_python_runs_warm(script: Path) -> None:
    found = commands.read([sys.executable, "-m", "train", "x"], str(script))
    assert found == commands.Command("module", ("train", "x"), str(script))


@pytest.mark.parametrize("words", [["sh", "-c", "x"], [sys.executable, "-X", "dev", "train.py"]])
def test_anything_else_is_a_program(words: list[str], script: Path) -> None:
    assert commands.read(words, str(script)) == commands.Command("program", tuple(words))


def test_a_directory_runs_its_main(script: Path) -> None:
    (script / "app").mkdir()
    with pytest.raises(UsageError, match=r"'app' is a directory without a __main__\.py"):
        commands.read([sys.executable, "app"], str(script))
    (script / "app" / "__main__.py").write_text("pass")
    found = commands.read([sys.executable, "app"], str(script))
    assert found.argv == (str(script / "app" / "__main__.py"),)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "xla-run: no command; write it after the options: -- python train.py"),
        ([sys.executable, "other.py"], r"script 'other\.py' does not exist in "),
        (["no-such-program"], "'no-such-program' is no program on PATH"),
    ],
)
def test_what_cannot_be_run_is_refused(words: list[str], message: str, script: Path) -> None:
    with pytest.raises(UsageError, match=message):
        commands.read(words, str(script))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--env", "1A=2"], r"--env '1A=2': the form X=Y is needed"),
        (["--tee", "0,7"], r"--tee '0,7': all, none, or ranks from 0 to 1 such as 0,2"),
        (["--job-id", "a/b"], "job id: 'a/b' cannot name a job"),
        (["--nprocs", "0"], "nprocs=0: a whole number from 1 up is needed"),
    ],
)
def test_options_that_cannot_be_right_are_refused(options: list[str], message: str) -> None:
    words = ["--nprocs", "2", *options, "--", "true"]
    found = CliRunner().invoke(cli, words, env={"PJRT_DEVICE": "CPU"})
    assert isinstance(found.exception, UsageError)
    with pytest.raises(UsageError, match=message):
        raise found.exception


def test_a_bad_duration_is_a_usage_error_of_its_flag() -> None:
    found = CliRunner().invoke(cli, ["--hang-timeout", "soon", "--", "true"])
    assert found.exit_code == 2 and "--hang-timeout: 'soon' is no duration" in found.output


def test_every_timeout_has_its_flag_in_the_help() -> None:
    text = CliRunner().invoke(cli, ["run", "--help"]).output
    assert all(row.flag in text and row.variable in text for row in TIMEOUTS)


def test_an_unknown_device_is_refused() -> None:
    found = CliRunner().invoke(cli, ["--", "true"], env={"PJRT_DEVICE": "NPU"})
    assert "PJRT_DEVICE='NPU' is unknown" in str(found.exception)


def test_a_job_that_does_not_run_is_named_with_those_that_do(tmp_path: Path) -> None:
    env = {"XLA_RUN_STATE_DIR": str(tmp_path)}
    found = CliRunner().invoke(cli, ["stop", "gone"], env=env)
    assert "job 'gone': no such job runs; running: none" in str(found.exception)
    found = CliRunner().invoke(cli, ["logs", "gone"], env=env)
    assert "job 'gone': no such job runs, and no logs of it are kept" in str(found.exception)


def test_a_name_is_held_by_one_job_and_free_after_it(tmp_path: Path) -> None:
    first = job.Registration(tmp_path, "nightly")
    first.publish(ranks=2)
    assert [record["job"] for record in job.running(tmp_path)] == ["nightly"]
    assert job.find(tmp_path, "night")["ranks"] == 2
    with pytest.raises(DuplicateJobError, match="job nightly: it is already running"):
        job.Registration(tmp_path, "nightly")
    first.close()
    assert list(job.running(tmp_path)) == []
    job.Registration(tmp_path, "nightly").close()


def test_the_record_of_a_dead_launcher_is_removed(tmp_path: Path) -> None:
    job.write_private(tmp_path / "old.json", '{"job": "old"}')
    (tmp_path / "old.lock").write_text("")
    assert list(job.running(tmp_path)) == [] and not (tmp_path / "old.json").exists()


def test_a_state_directory_that_cannot_be_used_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PreflightError, match=r"file/state: Not a directory; set XLA_RUN_STATE_DIR"):
        job.private_dir(tmp_path / "file" / "state")
    monkeypatch.setattr(job.os, "getuid", lambda: 12345)
    with pytest.raises(PreflightError, match=r"belongs to user \d+; set XLA_RUN_STATE_DIR"):
        job.private_dir(tmp_path)


def test_a_job_survives_its_journey() -> None:
    spec = job.Job("script", ["a.py"], 3, env={"A": "1"}, max_restarts=2)
    assert job.Job.from_json(spec.to_json()) == spec


def test_the_status_line_says_step_pace_and_who_is_slow() -> None:
    assert status_text(4, 4, [120, 120, 118, 120], 0.21, 1, "") == (
        "4/4 ranks up, step 120, 0.21 s/step, slowest rank 2 (118), restarts 1"
    )
    assert status_text(1, 4, [0, 0, 0, 0], None, 0, "") == "1/4 ranks up"


class _Tty(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_on_a_terminal_the_status_is_the_last_line_and_goes_at_the_end() -> None:
    out = _Tty()
    screen = Screen(2, out, out)
    screen("start", text="2 ranks on 1 host, CPU (shared memory)")
    screen("beats", up=2, steps=[3, 3], attempt=0, standing="")
    screen("log", rank=1, lines=["hello"])
    screen.close()
    text = out.getvalue()
    assert "\r\x1b[K2/2 ranks up, step 3" in text or "2/2 ranks up, step 3" in text
    assert "\r\x1b[K[1] hello\n" in text and text.endswith("\r\x1b[K")


def test_elsewhere_there_are_plain_lines_alone() -> None:
    out, err = io.StringIO(), io.StringIO()
    screen = Screen(1, out, err)
    screen("start", text="1 rank on 1 host, CPU")
    screen("beats", up=1, steps=[3], attempt=0, standing="")
    screen("log", rank=0, lines=["hello"])
    screen.close()
    assert (out.getvalue(), err.getvalue()) == ("hello\n", "1 rank on 1 host, CPU\n")


def test_a_report_has_the_cause_whole_and_the_echoes_folded() -> None:
    cause = Failure(2, "exception", type="ValueError", message="bad", traceback="Traceback: x\n")
    echo = Failure(
        0, "exception", type="E", message="lost", secondary=True, reason="it lost a peer"
    )
    text = report.failure_text([cause, echo, replace(echo, rank=1)], "/l")
    assert text.splitlines()[1] == "Traceback: x"
    assert text.splitlines()[2].startswith("then ranks 0, 1: ")
    assert text.endswith("logs: /l")


def test_a_stack_is_that_of_the_main_thread_without_our_frames() -> None:
    text = (
        'Thread 0x1 (most recent call first):\n  File "/a/b.py", line 1 in x\n\n'
        'Current thread 0x2 (most recent call first):\n  File "train.py", line 3 in main\n'
        '  File "/site/launcher/worker.py", line 9 in run\n  File "<frozen runpy>", line 8 in y\n'
    )
    assert report.main_stack(text).splitlines()[1:] == ['  File "train.py", line 3 in main']
