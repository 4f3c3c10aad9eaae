"""What a job is, what it is called, and where its record and logs lie.

A running job has one record, `STATE_DIR/JOB.json`, mode 0600 in a directory of mode 0700: its
controller's address and token, for `xla-run ps | logs | stack | stop`. A lock on `JOB.lock` says
that it runs; the kernel drops it with the process.
"""

import contextlib
import fcntl
import json
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torch_xdist.launcher.errors import DuplicateJobError, PreflightError, UsageError
from torch_xdist.launcher.settings import Timeouts, timeouts

KEPT_LOG_DIRS = 20


@dataclass
class Job:
    """All that the controller needs to know. Travels as JSON from `spawn` to its controller.

    kind: "function" (pickled, in the payload), "script" and "module" (Python, run inside a fork of
    the warm nursery), "program" (anything else, executed). `sys_path` goes in front of sys.path.
    Without `ranks_of_command` the command runs once and is no rank: it may spawn its own.
    """

    kind: str
    argv: list[str]
    nprocs: int
    device: str = "CPU"
    headline: str = ""
    job_id: str = ""
    log_dir: str = ""
    state_dir: str = ""
    cwd: str = ""
    sys_path: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    tee: str = "all"
    max_restarts: int = 0
    timeouts: Timeouts = field(default_factory=Timeouts)
    keep_logs: bool = True
    ranks_of_command: bool = True

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Job":
        """Read what `to_json` wrote."""
        return cls(**{**data, "timeouts": timeouts(data["timeouts"])})

    @property
    def warmth(self) -> str:
        """Whether the nursery imports torch and jax for this job."""
        return "cold" if self.kind == "program" else "warm"

    def to_json(self) -> dict[str, Any]:
        """Infinite timeouts travel as None: JSON has no infinity."""
        data = asdict(self)
        data["timeouts"] = self.timeouts.to_environ()
        return data


def new_id() -> str:
    """A name that sorts by time and that two jobs do not share: "1121-224512-3f9a2c"."""
    return time.strftime("%m%d-%H%M%S-") + secrets.token_hex(3)


def check_id(job_id: str) -> str:
    """The name itself, if it can be a file name and an environment value.

    Raises:
        UsageError: it cannot.
    """
    if not job_id or len(job_id) > 80 or not all(c.isalnum() or c in "._-" for c in job_id):
        raise UsageError(
            f"job id: {job_id!r} cannot name a job; use up to 80 letters, digits, '.', '_' and '-'"
        )
    return job_id


def private_dir(path: Path) -> Path:
    """The directory, made with mode 0700.

    Raises:
        PreflightError: it exists and belongs to somebody else, or cannot be made.
    """
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        owner = path.stat().st_uid
    except OSError as error:
        raise PreflightError(
            f"state directory {path}: {error.strerror}; set XLA_RUN_STATE_DIR to one you own"
        ) from error
    if owner != os.getuid():
        raise PreflightError(
            f"state directory {path} belongs to user {owner}; set XLA_RUN_STATE_DIR to one you own"
        )
    return path


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner can read, in one step."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    fd = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(fd, "w") as file:
        file.write(text)
    os.replace(scratch, path)


class Registration:
    """The record of a running job; holds its lock until closed or the process ends."""

    def __init__(self, state_dir: Path, job_id: str) -> None:
        self._path = private_dir(state_dir) / f"{check_id(job_id)}.json"
        self._lock_path = self._path.with_suffix(".lock")
        self._lock = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise DuplicateJobError(
                f"job {job_id}: it is already running on this host; stop it with `xla-run stop "
                f"{job_id}`, or give this one another --job-id"
            ) from None

    def publish(self, **facts: Any) -> None:
        """Write the record."""
        write_private(self._path, json.dumps({"job": self._path.stem, **facts}))

    def close(self) -> None:
        for path in (self._path, self._lock_path):
            with contextlib.suppress(OSError):
                path.unlink()
        os.close(self._lock)


def running(state_dir: Path) -> Iterator[dict[str, Any]]:
    """The records of the jobs that run; those of dead launchers are removed."""
    for path in sorted(state_dir.glob("*.json")):
        try:
            record = json.loads(path.read_text())
        except (OSError, ValueError):
            continue
        if _is_locked(path.with_suffix(".lock")):
            yield record
        else:
            for stale in (path, path.with_suffix(".lock")):
                with contextlib.suppress(OSError):
                    stale.unlink()


def find(state_dir: Path, job_id: str) -> dict[str, Any]:
    """The record of one running job; a unique beginning of its name is enough.

    Raises:
        UsageError: no running job, or several, go by that name.
    """
    records = list(running(state_dir))
    hits = [record for record in records if record["job"] == job_id]
    hits = hits or [record for record in records if record["job"].startswith(job_id)]
    if len(hits) == 1:
        return hits[0]
    names = ", ".join(record["job"] for record in records) or "none"
    found = "several jobs start with it" if hits else "no such job runs"
    raise UsageError(f"job {job_id!r}: {found}; running: {names}")


def log_root(job: Job) -> Path:
    """Where the attempts of a job have their log directories."""
    if job.log_dir:
        return Path(job.log_dir).absolute() / job.job_id
    return Path(job.state_dir) / "logs" / job.job_id


def prune_logs(state_dir: Path) -> None:
    """Keep the newest `KEPT_LOG_DIRS` of the log directories that nobody named."""
    with contextlib.suppress(OSError):
        found = sorted((state_dir / "logs").iterdir(), key=lambda path: path.stat().st_mtime)
        for old in found[:-KEPT_LOG_DIRS]:
            shutil.rmtree(old, ignore_errors=True)


def _is_locked(path: Path) -> bool:
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False
