"""The folders that hold the logs of jobs: LOG_ROOT/JOB/attempt-N/rank-R.log, and JOB/events.jsonl.

A folder that the launcher makes has a mark in it, which is locked while the job runs. Old folders
are removed only where the launcher chose the place, only those with the mark and without the lock,
and of them only the files that the launcher made: what a job has put beside its logs stays.
"""

import contextlib
import fcntl
import os
import re
import stat
import struct
from pathlib import Path

from torch_xdist.launcher.facts import registry
from torch_xdist.launcher.facts.errors import AmbiguousJobError

KEPT_FOLDERS = 20
MARK = ".xla-run-job"
EVENTS = "events.jsonl"
# What a job in the background has shown.
SCREEN = "screen.log"
_OURS = re.compile(r"rank-\d+\.(log|times|error\.json)")
_ATTEMPT = re.compile(r"attempt-(\d+)")
_LOCK = struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 0, 0)


class LogFolder:
    """The log folder of a job that runs.

    Args:
        fresh: whether an earlier job of that name keeps its folder, and this one gets another.

    Raises:
        OSError: it cannot be made.
    """

    def __init__(self, root: Path, job_id: str, *, fresh: bool = True) -> None:
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.path = _fresh(root, job_id) if fresh else root / job_id
        self.path.mkdir(exist_ok=True, mode=0o700)
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_EXCL * fresh
        self._mark: int | None = os.open(self.path / MARK, flags, 0o600)
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.fcntl(self._mark, fcntl.F_OFD_SETLK, _LOCK)

    def close(self, *, keep: bool = True) -> None:
        """The job is over; without `keep` its logs go."""
        if self._mark is not None:
            with contextlib.suppress(OSError):
                os.utime(self._mark)  # prune goes by the end of a job
            os.close(self._mark)
            self._mark = None
        if not keep:
            remove(self.path)


def _fresh(root: Path, job_id: str) -> Path:
    """A new folder: JOB, or JOB.2, JOB.3, ... where earlier jobs had that name."""
    number = 1
    while True:
        path = root / (job_id if number == 1 else f"{job_id}.{number}")
        try:
            path.mkdir(mode=0o700)
        except FileExistsError:
            number += 1
        else:
            return path


def remove(folder: Path) -> None:
    """Remove what the launcher made in a log folder, and the folder if nothing else is in it."""
    with contextlib.suppress(OSError):
        for attempt in [path for path in folder.iterdir() if _ATTEMPT.fullmatch(path.name)]:
            if attempt.is_symlink():
                continue
            for path in attempt.iterdir():
                if _OURS.fullmatch(path.name):
                    path.unlink()
            with contextlib.suppress(OSError):
                attempt.rmdir()
        for name in (EVENTS, SCREEN, MARK):
            (folder / name).unlink(missing_ok=True)
        folder.rmdir()


def prune(root: Path, keep: int = KEPT_FOLDERS) -> None:
    """Remove the logs of jobs that have ended, but for the newest `keep`."""
    ended: list[tuple[float, Path]] = []
    with contextlib.suppress(OSError):
        for folder in root.iterdir():
            ended_s = _ended_s(folder)
            if ended_s is not None:
                ended.append((ended_s, folder))
    for _, folder in sorted(ended, reverse=True)[keep:]:
        remove(folder)


def _ended_s(folder: Path) -> float | None:
    """When the job of a folder ended; None where it runs, or the folder is none of ours."""
    with contextlib.suppress(OSError):
        here = folder.lstat()
        if not stat.S_ISDIR(here.st_mode) or here.st_uid != os.getuid():
            return None
        fd = os.open(folder / MARK, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            return None if registry.is_locked(fd) else os.fstat(fd).st_mtime
        finally:
            os.close(fd)
    return None


def attempts(folder: Path) -> list[Path]:
    """The folders of a job's attempts, the first one first."""
    found = [(_ATTEMPT.fullmatch(path.name), path) for path in folder.iterdir()]
    return [
        path for match, path in sorted(((int(match[1]), path) for match, path in found if match))
    ]


def kept(root: Path, name: str) -> list[Path]:
    """The log folders below `root` whose job has this name, or one that starts so; newest last.

    Raises:
        AmbiguousJobError: several jobs have a name that starts so.
    """
    hits: list[Path] = []
    with contextlib.suppress(OSError):
        found = [path for path in root.iterdir() if (path / MARK).exists()]
        exact = [path for path in found if name in (path.name, _job_of(path))]
        hits = exact or [path for path in found if path.name.startswith(name)]
        hits.sort(key=lambda path: (path / MARK).stat().st_mtime)
    names = sorted({path.name if path.name == name else _job_of(path) for path in hits})
    if len(names) > 1:
        raise AmbiguousJobError.of(name, names)
    return hits


def _job_of(folder: Path) -> str:
    return re.sub(r"\.\d+$", "", folder.name)
