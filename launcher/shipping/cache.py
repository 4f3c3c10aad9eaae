"""The contents that a host has been sent, each under its hash, for jobs to come.

A content is written aside and renamed when it is whole and its hash is right, so two jobs may bring
the same at once; it is hashed again when it is read. Whoever removes one disturbs nobody: a
job copies what it needs, and asks for what is not there. The folder belongs to this user alone.
"""

import contextlib
import hashlib
import os
import secrets
import time
from collections.abc import Collection
from pathlib import Path

from torch_xdist.launcher.facts.errors import PreflightError
from torch_xdist.system.frames import write_all

KEPT_BYTES = 2_000_000_000
_CHUNK_BYTES = 1 << 20
_OLD_S = 3600.0
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_WRITE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Cache:
    """The contents below a folder.

    Args:
        folder: of this user alone, as `registry.private_dir` makes it.

    Raises:
        OSError: it cannot be used.
    """

    def __init__(self, folder: Path) -> None:
        self._contents, self._coming = folder / "contents", folder / "incoming"
        for path in (self._contents, self._coming):
            path.mkdir(mode=0o700, exist_ok=True)

    def may_have(self, content: str, size: int) -> bool:
        """Whether there is something of that name and size; `copy` says whether it is whole."""
        try:
            return self._path(content).lstat().st_size == size
        except OSError:
            return False

    def copy(self, content: str, size: int, to: int) -> bool:
        """Write a content to a descriptor, and say whether it was there, and whole."""
        made = hashlib.sha256()
        try:
            fd = os.open(self._path(content), _READ)
        except OSError:
            return False
        with open(fd, "rb", buffering=0) as file:
            if os.fstat(fd).st_size != size:
                return False
            while data := file.read(_CHUNK_BYTES):
                made.update(data)
                write_all(to, data)
            # What was used last goes last.
            with contextlib.suppress(OSError):
                os.utime(fd)
        if made.hexdigest() == content:
            return True
        # A disk has lost what it was given, as after a crash.
        with contextlib.suppress(OSError):
            self._path(content).unlink()
        return False

    def incoming(self, content: str) -> "Incoming":
        """A content that comes in pieces."""
        path = self._path(content)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        return Incoming(self._coming / f"{os.getpid()}-{secrets.token_hex(8)}", path, content)

    def prune(self, most_bytes: int, keep: Collection[str] = ()) -> None:
        """Remove what was used longest ago, but for `keep`, until no more than that is left."""
        found: list[tuple[float, int, Path]] = []
        kept = set(keep)
        for path in self._contents.glob("??/*"):
            with contextlib.suppress(OSError):
                facts = path.lstat()
                found.append((facts.st_mtime, facts.st_size, path))
        left = sum(size for _, size, _ in found)
        for _, size, path in sorted(found):
            if left <= most_bytes:
                break
            if path.parent.name + path.name not in kept:
                with contextlib.suppress(OSError):
                    path.unlink()
                    left -= size
        for path in self._coming.iterdir():
            # Of an agent that was killed; one that lives writes.
            with contextlib.suppress(OSError):
                if time.time() - path.lstat().st_mtime > _OLD_S:
                    path.unlink()

    def _path(self, content: str) -> Path:
        return self._contents / content[:2] / content[2:]


class Incoming:
    """A content on its way in; it is closed whether it came whole or not."""

    def __init__(self, aside: Path, path: Path, content: str) -> None:
        self._aside, self._path, self._content = aside, path, content
        self._hash = hashlib.sha256()
        self._size = 0
        self._fd = os.open(aside, _WRITE, 0o600)

    def add(self, data: bytes) -> None:
        """The next piece."""
        self._hash.update(data)
        self._size += len(data)
        write_all(self._fd, data)

    def finish(self) -> None:
        """All has come: from now on it is in the cache.

        Raises:
            PreflightError: it is another content.
        """
        if self._hash.hexdigest() != self._content:
            raise PreflightError(
                f"shipped code: {self._size} bytes came whose hash is not {self._content[:12]}; "
                "they were changed on their way; start the job again"
            )
        os.rename(self._aside, self._path)

    def copy_to(self, to: int) -> None:
        """Write it to a descriptor, whatever others do to the cache meanwhile."""
        at = 0
        while at < self._size:
            at += os.sendfile(to, self._fd, at, self._size - at)

    def close(self) -> None:
        """What is not whole goes."""
        os.close(self._fd)
        with contextlib.suppress(OSError):
            self._aside.unlink()
