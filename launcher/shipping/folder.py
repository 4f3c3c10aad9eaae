"""The copy of a job's folder on a host, from its first file to its removal.

JOBS/NAME/ has the manifest, a mark that an agent keeps locked while it lives (in it stands whether
the copy is whole), and the copy as tree/FOLDER. A name belongs to one job and one of its hosts,
so no job takes what another one has left. What ranks have written into the copy is theirs: only
what was shipped, and is as it was, is ever removed.
"""

import contextlib
import fcntl
import hashlib
import os
import stat
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from torch_xdist.launcher.facts import registry
from torch_xdist.launcher.facts.errors import ProtocolError
from torch_xdist.launcher.shipping.manifest import FILE, FOLDER, LINK, Entry, Manifest

_LOCK = struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 0, 0)
_MARK, _LIST, _PART, _TREE = "mark", "manifest", "part", "tree"
# A job may be started again within this time, on the same copy.
_OLD_S = 3600.0
_OPEN = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Copy:
    """The copy of one job on this host, locked until it is closed.

    Args:
        home: of this copy alone.
        mark: a descriptor of its mark, which is locked.
        listed: the manifest as it came.

    Attributes:
        path: where the copy is.
        is_whole: whether an earlier attempt of the job has left it so.
    """

    def __init__(self, home: Path, mark: int, listed: bytes, manifest: Manifest) -> None:
        self._home, self._fd = home, mark
        self._listed, self._manifest = listed, manifest
        self.path = home / _TREE / manifest.name
        self._whole = hashlib.sha256(listed).hexdigest().encode()
        self.is_whole = os.pread(mark, 100, 0) == self._whole and self.path.is_dir()

    @classmethod
    def of(cls, jobs: Path, name: str, listed: bytes, manifest: Manifest) -> "Copy":
        """That of a job on this host, which may be there from an earlier attempt.

        Args:
            jobs: the folder of all copies, of this user alone.

        Raises:
            OSError: it cannot be made.
        """
        return cls(*_locked(jobs, name), listed, manifest)

    def begin(self) -> None:
        """Make its folders; from now on its files may come."""
        (self._home / _LIST).write_bytes(self._listed)
        for path in (self.path.parent, self.path, *self._paths(FOLDER)):
            # One that is there is of an earlier attempt.
            path.mkdir(mode=0o700, exist_ok=True)

    def add(self, entry: Entry, fill: Callable[[int], bool]) -> bool:
        """A file, whole from the moment it has its name; one that ranks have written stays.

        Args:
            fill: writes its content to a descriptor; whether it could.
        """
        path, part = self.path / entry.path, self._home / _PART
        if os.path.lexists(path):
            return True
        with contextlib.suppress(FileNotFoundError):
            part.unlink()
        fd = os.open(part, _NEW, 0o700 if entry.is_executable else 0o600)
        try:
            if not fill(fd):
                return False
            # Python goes by the time of a source whether it has compiled it.
            os.utime(fd, ns=(entry.mtime_ns, entry.mtime_ns))
        finally:
            os.close(fd)
        os.rename(part, path)
        return True

    def finish(self) -> None:
        """All files are there: make the links, and mark the copy as whole."""
        for entry in self._entries(LINK):
            with contextlib.suppress(FileExistsError):
                os.symlink(entry.content, self.path / entry.path)
        os.pwrite(self._fd, self._whole, 0)
        self.is_whole = True

    def close(self, *, keep: bool) -> int:
        """Let go of it; without `keep` it goes, and the number of files is told that stay in it."""
        try:
            if keep:
                os.utime(self._fd)
                return 0
            os.ftruncate(self._fd, 0)
            return self._remove()
        finally:
            os.close(self._fd)

    def _remove(self) -> int:
        for entry in self._entries(FILE, LINK):
            path = self.path / entry.path
            with contextlib.suppress(OSError):
                if _is_as_shipped(path, entry):
                    path.unlink()
        for folder in sorted(self._paths(FOLDER), reverse=True):
            _remove_folder(folder)
        _remove_folder(self.path)
        with contextlib.suppress(OSError):
            self.path.parent.rmdir()
        for name in (_PART, _LIST, _MARK):
            with contextlib.suppress(OSError):
                (self._home / name).unlink()
        with contextlib.suppress(OSError):
            self._home.rmdir()
        return sum(len(files) for _, _, files in os.walk(self.path))

    def _entries(self, *kinds: str) -> Iterator[Entry]:
        return (entry for entry in self._manifest.entries if entry.kind in kinds)

    def _paths(self, kind: str) -> list[Path]:
        return [self.path / entry.path for entry in self._entries(kind)]


def sweep(jobs: Path, old_s: float = _OLD_S) -> None:
    """Remove what no agent has any more: half copies at once, whole ones after a time."""
    for home in list(jobs.iterdir()):
        with contextlib.suppress(OSError):
            if (mark := _mark_of(home, _OPEN)) is None:
                continue
            if os.pread(mark, 1, 0) and time.time() - os.fstat(mark).st_mtime < old_s:
                os.close(mark)
                continue
            Copy(home, mark, *_listed_in(home)).close(keep=False)


def _listed_in(home: Path) -> tuple[bytes, Manifest]:
    """What the copy there has, or was to have; nothing was made before its list was written."""
    try:
        listed = (home / _LIST).read_bytes()
        return listed, Manifest.from_bytes(listed)
    except (OSError, ProtocolError):
        return b"", Manifest("none", ())


def _locked(jobs: Path, name: str) -> tuple[Path, int]:
    """A folder NAME, or NAME.2, ... where an agent that is lost still has that; and its mark."""
    number = 1
    while True:
        home = jobs / (name + f".{number}" * (number > 1))
        home.mkdir(mode=0o700, exist_ok=True)
        try:
            mark = _mark_of(home, _OPEN | os.O_CREAT)
        except FileNotFoundError:
            continue  # somebody swept it, empty as it was
        if mark is not None:
            return home, mark
        number += 1


def _mark_of(home: Path, flags: int) -> int | None:
    """The mark, locked; None where another one has it."""
    mark = os.open(home / _MARK, flags, 0o600)
    if _lock(mark) and registry.is_at(mark, home / _MARK):
        return mark
    os.close(mark)
    return None


def _lock(fd: int) -> bool:
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _LOCK)
    except (BlockingIOError, PermissionError):
        return False
    except OSError:
        return True  # a file system without locks
    return True


def _is_as_shipped(path: Path, entry: Entry) -> bool:
    found = path.lstat()
    if entry.kind == LINK:
        return stat.S_ISLNK(found.st_mode) and os.readlink(path) == entry.content
    # Some file systems keep microseconds.
    same = found.st_mtime_ns // 1000 == entry.mtime_ns // 1000
    return stat.S_ISREG(found.st_mode) and found.st_size == entry.size and same


def _remove_folder(folder: Path) -> None:
    """Remove it if nothing of the ranks' is in it; what Python has compiled of ours is not."""
    with contextlib.suppress(OSError):
        compiled = folder / "__pycache__"
        if compiled.is_dir() and not compiled.is_symlink():
            for path in compiled.glob("*.pyc*"):
                path.unlink()
            compiled.rmdir()
    with contextlib.suppress(OSError):
        folder.rmdir()
