"""Entries of a folder: bytes under a name, whole or not at all, bounded in bytes together.

Many processes use a folder at once, and any of them may be killed at any time: an entry is written
beside its place and then put there, and holds a checksum for what a full disk or a power cut does.
"""

import contextlib
import hashlib
import os
import secrets
import time
from collections.abc import Iterator

from torch_xdist import metrics

SUFFIX = "-cache"
_NEW = ".new"
_HEAD = b"torch-xdist program\n"
_SUM_BYTES = 32
# What a writer that was killed has left is removed after this.
_STALE_S = 3600.0
# Of the limit: how much this process writes before it looks how full the folder is, and how much
# stays then.
_SHARE_PER_LOOK = 1 / 16
_SHARE_KEPT = 7 / 8


class Entries:
    """What a folder keeps; `limit_bytes` of disk, the least recently used make room."""

    def __init__(self, folder: int, limit_bytes: int) -> None:
        self._folder = folder
        self._limit_bytes = limit_bytes
        self._until_look_bytes = 0

    def read(self, name: str) -> bytes | None:
        """The bytes under a name, which counts as a use; None where there are none.

        A damaged entry is removed and counted. Raises OSError where the folder cannot be read.
        """
        try:
            file = os.open(name + SUFFIX, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=self._folder)
        except FileNotFoundError:
            return None
        with open(file, "rb") as opened:
            found = opened.read()
            with contextlib.suppress(OSError):  # a folder that may only be read
                os.utime(file)
        content = found[len(_HEAD) + _SUM_BYTES :]
        if found[: -len(content) or None] == _HEAD + hashlib.sha256(content).digest():
            return content
        metrics.count("PersistentCacheDamaged")
        self._remove(name + SUFFIX)
        return None

    def write(self, name: str, content: bytes) -> bool:
        """Keep these bytes under a name, unless they are too many.

        Raises OSError where the folder cannot be written; nothing of the entry is left then.
        """
        if len(content) > self._limit_bytes * _SHARE_KEPT:
            return False
        new = f"{name}.{secrets.token_hex(4)}{_NEW}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        file = os.open(new, flags, 0o600, dir_fd=self._folder)
        try:
            with open(file, "wb") as opened:
                opened.write(_HEAD + hashlib.sha256(content).digest() + content)
            os.replace(new, name + SUFFIX, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        except BaseException:
            self._remove(new)
            raise
        self._until_look_bytes -= len(content)
        if self._until_look_bytes <= 0:
            self._until_look_bytes = int(self._limit_bytes * _SHARE_PER_LOOK)
            self._make_room()
        return True

    def _make_room(self) -> None:
        found = sorted(self._entries())
        surplus = sum(size for _, size, _ in found) - self._limit_bytes * _SHARE_KEPT
        for _, size, name in found:
            if surplus <= 0:
                return
            self._remove(name)
            metrics.count("PersistentCacheEvicted")
            surplus -= size

    def _entries(self) -> Iterator[tuple[int, int, str]]:
        """(when it was last used, its bytes on disk, its file) of each; removes what is stale."""
        stale_ns = time.time_ns() - int(_STALE_S * 1e9)
        with os.scandir(self._folder) as files:
            for file in files:
                try:
                    found = file.stat(follow_symlinks=False)
                except FileNotFoundError:  # another process made room
                    continue
                if file.name.endswith(SUFFIX):
                    yield found.st_mtime_ns, found.st_blocks * 512, file.name
                elif file.name.endswith(_NEW) and found.st_mtime_ns < stale_ns:
                    self._remove(file.name)

    def _remove(self, file: str) -> None:
        with contextlib.suppress(OSError):
            os.unlink(file, dir_fd=self._folder)
