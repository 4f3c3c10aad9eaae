"""What a running job shows to whom: its token and its secret show nowhere."""

import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

TWO = ("--nprocs", "2", "--job-id", "guarded")
_WAIT = "print('up'); meet(); say('secret', os.environ['XLA_RUN_SECRET']); threading.Event().wait()"


def test_a_running_job_shows_its_secrets_to_its_owner_alone(start: Callable) -> None:
    job = start(_WAIT, *TWO, "--env", "HF_TOKEN=hidden-value")
    secret = job.wait_for("secret")
    record = job.folder / "jobs" / "guarded.job.json"
    token = json.loads(record.read_text())["token"]
    job.wait_for("logs/guarded/attempt-0/rank-0.log")
    job.wait_for("logs/guarded/attempt-0/rank-1.log")
    private = [record, *job.folder.glob("logs/*/*.jsonl"), *job.folder.glob("logs/*/*/*")]
    assert len(private) == 6
    for path in private:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    for folder in (record.parent, job.folder / "logs" / "guarded"):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for pid in job.alive() | {job.process.pid}:
        shown = Path(f"/proc/{pid}/cmdline").read_bytes()
        assert token.encode() not in Path(f"/proc/{pid}/environ").read_bytes() + shown
        assert secret.encode() not in shown
        if pid != job.process.pid:
            assert b"hidden-value" not in shown
    job.process.terminate()
    ended = job.end(20)
    texts = [path.read_bytes() for path in job.folder.glob("logs/**/*") if path.is_file()]
    texts += [record.read_bytes(), ended.out.encode(), ended.err.encode()]
    for hidden in (token, secret, "hidden-value"):
        assert not any(hidden.encode() in text for text in texts)


def test_every_attempt_has_a_secret_of_its_own_which_all_ranks_share(run: Callable) -> None:
    ended = run(
        """
        meet()
        print("secret", os.environ["XLA_RUN_SECRET"])
        if os.environ["XLA_RUN_ATTEMPT"] == "0": raise ValueError("once")
        """,
        *("--nprocs", "2", "--max-restarts", "1"),
    )
    assert ended.code == 0, ended.err
    told = [line.split()[2] for line in ended.out.splitlines() if " secret " in line]
    assert len(told) == 4 and len(set(told)) == 2 and all(len(text) == 64 for text in told)


def test_a_dry_run_masks_secrets_and_starts_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torch_xdist.launcher", "--dry-run", "--nprocs", "2"),
            *("--env", "HF_TOKEN=hidden-value", "--", "true", "--fast"),
        ],
        env={**os.environ, "XLA_RUN_STATE_DIR": str(tmp_path / "state")},
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 0, done.stderr
    assert "hidden-value" not in done.stdout and "  HF_TOKEN=***" in done.stdout
    assert "  XLA_RUN_SECRET=***" in done.stdout and "  WORLD_SIZE=2" in done.stdout
    assert "): true --fast" in done.stdout
    assert not (tmp_path / "state").exists()


@pytest.fixture(params=["open to all", "a link", "open to all below"])
def scratch(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    """Where logs go by default is another user's to write to; the records are elsewhere."""
    folder = tmp_path / "tmp" / f"xla-run-{os.getuid()}"
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / "runtime").mkdir(mode=0o700)
    folder.parent.mkdir(mode=0o700)
    if request.param == "a link":
        folder.symlink_to(tmp_path / "elsewhere")
    else:
        bad = folder if request.param == "open to all" else folder / "logs"
        bad.mkdir(parents=True, mode=0o700)
        bad.chmod(0o777)
    return {
        "TMPDIR": str(folder.parent),
        "XDG_RUNTIME_DIR": str(tmp_path / "runtime"),
        "XLA_RUN_STATE_DIR": "",
        "XLA_RUN_LOG_DIR": "",
    }


def test_no_logs_go_where_another_user_may_write(
    start: Callable, tmp_path: Path, scratch: dict[str, str]
) -> None:
    body = "print('log dir', repr(os.environ['XLA_RUN_LOG_DIR']))\nif RANK: sys.exit(3)"
    ended = start(body, *TWO, env=scratch).end()
    assert ended.code == 3, ended.err
    assert "[0] log dir ''" in ended.out
    assert ended.err.count("warning: no logs are kept: state directory ") == 1
    assert "so others may write to it" in ended.err or "is a link or a file" in ended.err
    assert "logs: " not in ended.err
    made = [path for part in ("tmp", "elsewhere") for path in (tmp_path / part).rglob("*")]
    assert {path.name for path in made} <= {f"xla-run-{os.getuid()}", "logs"}
    words = [sys.executable, "-m", "torch_xdist.launcher", "logs", "guarded"]
    environ = {**os.environ, **scratch}
    done = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=30)
    assert done.returncode == 2
    assert "job guarded: no logs of it are kept; it said so at its start" in done.stderr


def test_logs_go_to_the_default_place_where_it_is_the_users_alone(
    start: Callable, tmp_path: Path
) -> None:
    env = {"TMPDIR": str(tmp_path), "XDG_RUNTIME_DIR": "", "XLA_RUN_STATE_DIR": ""}
    assert start("print('kept')", *TWO, env=env).end().code == 0
    logs = tmp_path / f"xla-run-{os.getuid()}" / "logs"
    assert (logs / "guarded" / "attempt-0" / "rank-1.log").read_text() == "kept\n"
    assert stat.S_IMODE(logs.stat().st_mode) == 0o700
