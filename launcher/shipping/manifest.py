"""What a shipped folder consists of: its folders, files and links, each file by its content's hash.

It is made at the head and read on the hosts, where nothing is believed that would lead out of the
folder.
"""

import json
import os
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import PurePosixPath

from torch_xdist.launcher.facts.errors import ProtocolError

FILE, FOLDER, LINK = "file", "folder", "link"
_CONTENT = re.compile(r"[0-9a-f]{64}")
# Of its JSON; 100 000 files with long names need a fourth of it.
_MOST_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class Entry:
    """One path below the folder, with "/" between its parts.

    `content` is the SHA-256 of a file in hexadecimal, or what a link says. `size` is in bytes,
    `mtime_ns` in nanoseconds since 1970; both are of files alone, as is `is_executable`.
    """

    path: str
    kind: str = FILE
    content: str = ""
    size: int = 0
    mtime_ns: int = 0
    is_executable: bool = False


@dataclass(frozen=True, slots=True)
class Manifest:
    """A folder, called `name`; every entry stands behind the folder that it is in."""

    name: str
    entries: tuple[Entry, ...]

    def files(self) -> Iterator[tuple[int, Entry]]:
        """The files, with their numbers among the entries."""
        return (pair for pair in enumerate(self.entries) if pair[1].kind == FILE)

    @property
    def total_bytes(self) -> int:
        return sum(entry.size for _, entry in self.files())

    def alike(self) -> list[list[int]]:
        """The numbers of the files, those of one content together."""
        files = sorted(self.files(), key=lambda pair: (pair[1].content, pair[0]))
        same = groupby(files, key=lambda pair: pair[1].content)
        return [[number for number, _ in group] for _, group in same]

    def to_bytes(self) -> bytes:
        """What `from_bytes` reads."""
        rows = [
            [one.path, one.kind, one.content, one.size, one.mtime_ns, one.is_executable]
            for one in self.entries
        ]
        return zlib.compress(json.dumps([self.name, rows]).encode(), 1)

    @classmethod
    def from_bytes(cls, data: bytes) -> "Manifest":
        """Read what `to_bytes` wrote.

        Raises:
            ProtocolError: it is something else, or has an entry that may be no part of a folder.
        """
        try:
            unpacker = zlib.decompressobj()
            name, rows = json.loads(unpacker.decompress(data, _MOST_BYTES))
            entries = tuple(
                Entry(str(path), str(kind), str(content), int(size), int(mtime_ns), bool(runs))
                for path, kind, content, size, mtime_ns, runs in rows
            )
        except (RecursionError, TypeError, ValueError, zlib.error) as error:
            raise ProtocolError(f"shipped code: its list cannot be read: {error!r}") from error
        if len(_parts(str(name))) != 1:
            raise ProtocolError(f"shipped code: {name!r} can be no name of a folder")
        _check(entries)
        return cls(str(name), entries)


def leads_out(path: str, target: str) -> bool:
    """Whether a link at a path below a folder names a place outside of it, as it is written."""
    if target.startswith("/"):
        return True
    depth = len(PurePosixPath(path).parent.parts)
    for part in target.split("/"):
        depth += (part not in ("", ".", "..")) - (part == "..")
        if depth < 0:
            return True
    return False


def size_text(size: float) -> str:
    """ "512 bytes", "1.5 MB"."""
    if size < 1000:
        return f"{size:.0f} bytes"
    power = 1 if size < 999_500 else 2 if size < 999_500_000 else 3
    return f"{size / 1000**power:.3g} {('kB', 'MB', 'GB')[power - 1]}"


def count_text(count: int, what: str = "file") -> str:
    """ "1 file", "2 files"."""
    return f"{count} {what}{'s' * (count != 1)}"


def _parts(path: str) -> Sequence[str]:
    """The parts of a path below a folder; none where it is no such path."""
    parts = path.split("/")
    is_plain = all(part not in ("", ".", "..") and "\0" not in part for part in parts)
    return parts if is_plain else ()


def _check(entries: Iterable[Entry]) -> None:
    seen: set[str] = set()
    folders = {""}
    for entry in entries:
        parent = "/".join(_parts(entry.path)[:-1])
        if not _parts(entry.path) or parent not in folders or entry.path in seen:
            raise ProtocolError(f"shipped code: {entry.path!r} can be no path in a folder")
        seen.add(entry.path)
        if entry.kind == FOLDER:
            folders.add(entry.path)
        elif entry.kind == LINK:
            if not entry.content or "\0" in entry.content or leads_out(entry.path, entry.content):
                raise ProtocolError(
                    f"shipped code: the link {entry.path!r} to {entry.content!r} leads out of it"
                )
        elif entry.kind != FILE or not _CONTENT.fullmatch(entry.content) or entry.size < 0:
            raise ProtocolError(f"shipped code: {entry.path!r} is no file, folder or link")


def shown(path: str) -> str:
    """A path as it is told, also where it is no text."""
    return os.fsencode(path).decode(errors="replace")
