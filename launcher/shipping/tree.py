"""Reads the folder that is to be shipped: what is in it, how large it is, and the hashes of it."""

import hashlib
import os
import stat
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from torch_xdist.launcher.facts.errors import PreflightError, UsageError
from torch_xdist.launcher.shipping.ignored import Ignored, is_never_shipped
from torch_xdist.launcher.shipping.manifest import (
    FILE,
    FOLDER,
    LINK,
    Entry,
    Manifest,
    count_text,
    leads_out,
    shown,
    size_text,
)

MOST_BYTES = 500_000_000
MOST_ENTRIES = 100_000
_CHUNK_BYTES = 1 << 20
_NAMED = 5


def read(root: Path, most_bytes: int = MOST_BYTES) -> Manifest:
    """All that is shipped of a folder.

    Args:
        root: as it really is called, without links on the way.
        most_bytes: of all files together.

    Raises:
        UsageError: it is too large, or a link in it leads out.
        PreflightError: something in it cannot be read, or git cannot say what is ignored.
    """
    found: list[Entry] = []
    for entry in _entries(root, root, Ignored(root)):
        found.append(entry)
        if len(found) > MOST_ENTRIES:
            raise _too_many(root, found)
    if sum(entry.size for entry in found) > most_bytes:
        raise _too_large(root, found, most_bytes)
    hashed = tuple(_hashed(root, entry) if entry.kind == FILE else entry for entry in found)
    return Manifest(root.name or "root", hashed)


def chunks(path: Path, size: int) -> Iterator[bytes]:
    """The first `size` bytes of a file; fewer where it has become shorter.

    What is appended meanwhile, as to a log of this very run, is no change.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    with open(os.open(path, flags), "rb", buffering=0) as file:
        while size > 0 and (data := file.read(min(size, _CHUNK_BYTES))):
            size -= len(data)
            yield data


def _entries(root: Path, folder: Path, ignored: Ignored) -> Iterator[Entry]:
    """What is in a folder and below; a folder stands before what is in it."""
    try:
        found = sorted(os.scandir(folder), key=lambda one: one.name)
    except OSError as error:
        raise _unreadable(root, folder, error) from error
    if folder != root and any(one.name == ".git" for one in found):
        # A repository in another one has rules of its own, and the outer one knows nothing of it.
        ignored = Ignored(folder)
    for one in found:
        is_folder = one.is_dir(follow_symlinks=False)
        if is_never_shipped(folder, one.name) or ignored.has(folder, one.name, is_folder=is_folder):
            continue
        path = Path(one.path)
        inside = str(path.relative_to(root))
        if one.is_symlink():
            yield _link(root, path, inside)
        elif is_folder:
            yield Entry(inside, FOLDER)
            yield from _entries(root, path, ignored)
        else:
            facts = one.stat(follow_symlinks=False)
            # A socket, a pipe or a device is nothing to copy.
            if stat.S_ISREG(facts.st_mode):
                runs = bool(facts.st_mode & 0o111)
                yield Entry(inside, FILE, "", facts.st_size, facts.st_mtime_ns, runs)


def _link(root: Path, path: Path, inside: str) -> Entry:
    """A link as it is; one that names its place absolutely gets the way there from where it is."""
    target = os.readlink(path)
    real = os.path.realpath(path.parent / target)
    if os.path.isabs(target):
        target = os.path.relpath(real, path.parent)
    # As it is written, and where it leads over other links.
    if leads_out(inside, target) or not Path(real).is_relative_to(root):
        raise UsageError(
            f"--ship {root}: the link {shown(inside)} leads out of it, to "
            f"{shown(os.readlink(path))}; copy what is there into it, or leave the link out by a "
            "line in .gitignore"
        )
    return Entry(inside, LINK, target)


def _hashed(root: Path, entry: Entry) -> Entry:
    made, size = hashlib.sha256(), 0
    try:
        for data in chunks(root / entry.path, entry.size):
            made.update(data)
            size += len(data)
    except OSError as error:
        raise _unreadable(root, root / entry.path, error) from error
    return Entry(entry.path, FILE, made.hexdigest(), size, entry.mtime_ns, entry.is_executable)


def _unreadable(root: Path, path: Path, error: OSError) -> PreflightError:
    inside = shown(str(path.relative_to(root)))
    return PreflightError(
        f"--ship {root}: {inside} cannot be read: {error.strerror}; make it readable, or leave it "
        "out by a line in .gitignore"
    )


def _too_large(root: Path, found: Sequence[Entry], most_bytes: int) -> UsageError:
    total = sum(entry.size for entry in found)
    largest = sorted(found, key=lambda entry: -entry.size)[:_NAMED]
    told = ", ".join(f"{shown(entry.path)} ({size_text(entry.size)})" for entry in largest)
    return UsageError(
        f"--ship {root}: it has {size_text(total)}, and at most {size_text(most_bytes)} are "
        f"shipped; the largest files are {told}; leave out what is no code by lines in "
        ".gitignore, or allow more by --ship-limit"
    )


def _too_many(root: Path, found: Sequence[Entry]) -> UsageError:
    folders = Counter(entry.path.split("/")[0] for entry in found if "/" in entry.path)
    told = ", ".join(
        f"{shown(name)} ({count_text(count)})" for name, count in folders.most_common(_NAMED)
    )
    return UsageError(
        f"--ship {root}: it has more than {MOST_ENTRIES} files; most are in {told or 'itself'}; "
        "leave out what is no code by lines in .gitignore"
    )
