"""The records of this user's jobs: one file per job, for `xla-run ps | logs | stack | stop`.

`STATE_DIR/jobs/JOB.job.json` holds the address and token of the job's head. The launcher of a job
holds a lock on the file; the kernel drops it with the process, so a record without a lock is of a
job that has ended. The lock belongs to the open file, not to the process (OFD), and is only asked
for by others, never taken: who looks disturbs nobody. Whoever has locked a file compares it with
the path again, so a record may be removed.

Only files with our name, our first words and no lock are ever removed.
"""

import contextlib
import errno
import fcntl
import json
import os
import stat
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch_xdist.launcher.facts.errors import (
    AmbiguousJobError,
    DuplicateJobError,
    PreflightError,
    UsageError,
)
from torch_xdist.launcher.facts.job import check_id

FORMAT = "xla-run job 1"
KEPT_RECORDS = 50
_SUFFIX = ".job.json"
_MOST_BYTES = 16 << 20
_TRIES, _TRY_S = 5, 0.01
# struct flock: type, whence, start, length, process.
_FLOCK = struct.Struct("hhqqi4x")
_MINE = os.O_NOFOLLOW | os.O_CLOEXEC

Record = dict[str, Any]


def private_dir(path: Path) -> Path:
    """The directory, made with mode 0700 where it is not there.

    Raises:
        PreflightError: it cannot be made, is a link, or others than this user own or may use it.
    """
    where = f"state directory {path}"
    advice = "set XLA_RUN_STATE_DIR to a directory that is yours alone (chmod 700)"
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        found = path.lstat()
    except OSError as error:
        raise PreflightError(f"{where}: {error.strerror}; {advice}") from error
    if not stat.S_ISDIR(found.st_mode):
        raise PreflightError(f"{where} is a link or a file; {advice}")
    if found.st_uid != os.getuid():
        raise PreflightError(f"{where} belongs to user {found.st_uid}; {advice}")
    if found.st_mode & 0o022:
        mode = stat.S_IMODE(found.st_mode)
        raise PreflightError(f"{where} has mode {mode:o}, so others may write to it; {advice}")
    return path


class Registration:
    """The record of a running job; holds its lock until closed or the process ends.

    Raises:
        DuplicateJobError: a job of this name runs.
        PreflightError: the state directory cannot be used.
    """

    def __init__(self, state_dir: Path, job_id: str) -> None:
        # The state directory may be the user's own; what is ours is below it.
        self.path = private_dir(private_dir(state_dir) / "jobs") / (check_id(job_id) + _SUFFIX)
        self._fd = self._locked(job_id)
        self._facts: Record = {"format": FORMAT, "job": job_id, "pid": os.getpid()}
        if self._is_foreign():
            os.close(self._fd)
            raise PreflightError(
                f"state directory: {self.path} is no record of a job; move it away, or set "
                "XLA_RUN_STATE_DIR to another directory"
            )

    def _locked(self, job_id: str) -> int:
        for _ in range(_TRIES):
            fd = self._open()
            try:
                fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_WRLCK, 0, 0, 0, 0))
            except OSError as error:
                os.close(fd)
                if error.errno not in (errno.EAGAIN, errno.EACCES):
                    raise PreflightError(
                        f"state directory: {self.path} cannot be locked: {error.strerror}; set "
                        "XLA_RUN_STATE_DIR to a local directory"
                    ) from error
                time.sleep(_TRY_S)  # `prune` holds the lock of what it removes, for a moment
                continue
            if is_at(fd, self.path):
                return fd
            os.close(fd)
        raise DuplicateJobError(
            f"job {job_id}: it is already running on this host; stop it with "
            f"`xla-run stop {job_id}`, or give this one another --job-id"
        )

    def _open(self) -> int:
        try:
            return os.open(self.path, os.O_RDWR | os.O_CREAT | _MINE, 0o600)
        except OSError as error:
            raise PreflightError(
                f"state directory: {self.path} cannot be opened: {error.strerror}; set "
                "XLA_RUN_STATE_DIR to another directory"
            ) from error

    def _is_foreign(self) -> bool:
        return os.fstat(self._fd).st_size > 0 and _read(self._fd) is None

    def publish(self, **facts: Any) -> None:
        """Write these facts into the record, beside those written before.

        Raises:
            OSError: the disk is full.
        """
        self._facts.update(facts)
        data = (json.dumps(self._facts) + "\n").encode()
        written = os.pwrite(self._fd, data, 0)
        os.ftruncate(self._fd, written)
        if written < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def forget(self) -> None:
        """Make the record empty: half of one would be worse."""
        os.ftruncate(self._fd, 0)

    def close(self, exit_code: int | None = None) -> None:
        """The job is over: leave a record of that, without the token, and drop the lock."""
        self._facts.pop("token", None)
        with contextlib.suppress(OSError):
            self.publish(ended=time.time(), exit_code=exit_code)
        os.close(self._fd)


def records(state_dir: Path) -> Iterator[Record]:
    """The records of all jobs, by name; `running` is added to each."""
    for path in _paths(state_dir):
        with contextlib.suppress(OSError), _opened(path) as fd:
            record, is_running = _settled(fd)
            if record is not None:
                yield {**record, "running": is_running}


def running(state_dir: Path) -> list[Record]:
    """The records of the jobs that run."""
    return [record for record in records(state_dir) if record["running"]]


def find(state_dir: Path, job_id: str, *, ended: bool = False) -> Record:
    """The record of one job that runs (with `ended`, also of one that did).

    A beginning of the name is enough, where only one job has it; a job that runs comes first.

    Raises:
        AmbiguousJobError: several jobs have a name that starts so.
        UsageError: none has.
    """
    every = [record for record in records(state_dir) if ended or record["running"]]
    for names in (
        [record for record in every if record["job"] == job_id],
        [record for record in every if record["running"] and record["job"].startswith(job_id)],
        [record for record in every if record["job"].startswith(job_id)],
    ):
        if len(names) == 1:
            return names[0]
        if names:
            raise AmbiguousJobError.of(job_id, [record["job"] for record in names])
    there = ", ".join(record["job"] for record in every) or "none"
    raise UsageError(
        f"job {job_id!r}: no such job {'is known' if ended else 'runs'}; there: {there}"
    )


def prune(state_dir: Path, keep: int = KEPT_RECORDS) -> None:
    """Remove the records of jobs that have ended, but for the newest `keep`."""
    found: list[tuple[float, Path]] = []
    for path in _paths(state_dir):
        with contextlib.suppress(OSError), _opened(path) as fd:
            record, is_running = _settled(fd)
            if record is not None and not is_running:
                found.append((os.fstat(fd).st_mtime, path))
    for _, path in sorted(found, reverse=True)[keep:]:
        with contextlib.suppress(OSError), _opened(path, os.O_RDWR) as fd:
            fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_WRLCK, 0, 0, 0, 0))
            if is_at(fd, path) and _read(fd) is not None:
                path.unlink()


def is_locked(fd: int) -> bool:
    """Whether somebody holds a lock on this file; none is taken."""
    asked = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, _FLOCK.pack(fcntl.F_WRLCK, 0, 0, 0, 0))
    return _FLOCK.unpack(asked)[0] != fcntl.F_UNLCK


def _paths(state_dir: Path) -> list[Path]:
    try:
        found = [p for p in (state_dir / "jobs").iterdir() if p.name.endswith(_SUFFIX)]
    except OSError:
        return []
    return sorted(found, key=lambda path: path.name.removesuffix(_SUFFIX))


@contextlib.contextmanager
def _opened(path: Path, flags: int = os.O_RDONLY) -> Iterator[int]:
    fd = os.open(path, flags | os.O_NONBLOCK | _MINE)
    try:
        yield fd
    finally:
        os.close(fd)


def _settled(fd: int) -> tuple[Record | None, bool]:
    """The record and whether its job runs; a record that is being written is read again."""
    for _ in range(20):
        is_running = is_locked(fd)
        record = _read(fd)
        if record is not None or not is_running:
            return record, is_running
        time.sleep(0.005)
    return None, True


def _read(fd: int) -> Record | None:
    """The record in a file; None where it is none of ours."""
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.getuid():
        return None
    try:
        record = json.loads(os.pread(fd, min(found.st_size, _MOST_BYTES), 0))
    except ValueError:
        return None
    ours = isinstance(record, dict) and record.get("format") == FORMAT and "job" in record
    return record if ours else None


def is_at(fd: int, path: Path) -> bool:
    """Whether the open file is still the one with this path."""
    try:
        now = os.stat(path, follow_symlinks=False)
    except OSError:
        return False
    return os.path.samestat(os.fstat(fd), now)
