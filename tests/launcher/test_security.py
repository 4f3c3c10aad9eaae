"""What a running job shows to whom: its token and its secret show nowhere."""

import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

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
