"""The copy of a job on a host: whole or not at all, and gone but for what ranks have written."""

import hashlib
import os
import time
from pathlib import Path

import pytest

from torch_xdist.launcher.shipping.folder import Copy, sweep
from torch_xdist.launcher.shipping.manifest import FILE, FOLDER, LINK, Entry, Manifest

X = hashlib.sha256(b"x").hexdigest()
NS = 1_700_000_000_000_000_000
ENTRIES = (
    Entry("pkg", FOLDER),
    Entry("pkg/run.sh", FILE, X, 1, NS, True),
    Entry("train.py", FILE, X, 1, NS),
    Entry("link", LINK, "pkg/run.sh"),
)
MANIFEST = Manifest("code", ENTRIES)
LISTED = MANIFEST.to_bytes()


def copy_of(jobs: Path, name: str = "j-0") -> Copy:
    return Copy.of(jobs, name, LISTED, MANIFEST)


def fill(fd: int) -> bool:
    os.write(fd, b"x")
    return True


def whole(jobs: Path, name: str = "j-0") -> Copy:
    copy = copy_of(jobs, name)
    copy.begin()
    for entry in ENTRIES[1:3]:
        assert copy.add(entry, fill)
    copy.finish()
    return copy


def age(jobs: Path, seconds: float = 4000) -> None:
    for mark in jobs.glob("*/mark"):
        os.utime(mark, (time.time() - seconds,) * 2)


def test_a_copy_has_what_the_folder_had(tmp_path: Path) -> None:
    path = whole(tmp_path).path
    assert path.name == "code" and (path / "train.py").read_bytes() == b"x"
    assert (path / "train.py").stat().st_mtime_ns == NS
    assert os.access(path / "pkg/run.sh", os.X_OK)
    assert (path / "train.py").stat().st_mode & 0o777 == 0o600
    assert os.readlink(path / "link") == "pkg/run.sh"


@pytest.mark.parametrize("name", ["mark", "manifest", "part", "tree"])
def test_a_folder_may_have_any_name(tmp_path: Path, name: str) -> None:
    copy = Copy.of(tmp_path, "j-0", LISTED, Manifest(name, ENTRIES))
    copy.begin()
    assert copy.add(ENTRIES[2], fill)
    copy.finish()
    assert (copy.path / "train.py").exists()
    copy.close(keep=False)
    assert not list(tmp_path.iterdir())


def test_a_file_that_could_not_be_filled_has_no_name(tmp_path: Path) -> None:
    copy = copy_of(tmp_path)
    copy.begin()
    assert not copy.add(ENTRIES[2], lambda fd: False)
    assert not (copy.path / "train.py").exists() and not copy.is_whole


def test_nothing_of_a_copy_is_left(tmp_path: Path) -> None:
    copy = whole(tmp_path)
    compiled = copy.path / "pkg/__pycache__"
    compiled.mkdir()
    (compiled / "run.cpython-311.pyc").write_bytes(b"")
    assert copy.close(keep=False) == 0
    assert not list(tmp_path.iterdir())


def test_what_ranks_have_written_or_changed_stays_and_is_counted(tmp_path: Path) -> None:
    copy = whole(tmp_path)
    (copy.path / "pkg/result").write_text("42")
    (copy.path / "train.py").write_text("changed")
    assert copy.close(keep=False) == 2
    left = sorted(path.name for path in copy.path.rglob("*") if path.is_file())
    assert left == ["result", "train.py"]


def test_a_copy_that_was_kept_is_that_of_the_next_attempt(tmp_path: Path) -> None:
    copy = whole(tmp_path)
    (copy.path / "train.py").write_text("changed")
    copy.close(keep=True)
    again = copy_of(tmp_path)
    assert again.is_whole and again.path == copy.path
    assert (again.path / "train.py").read_text() == "changed"


def test_a_half_copy_is_not_taken_for_a_whole_one(tmp_path: Path) -> None:
    copy = copy_of(tmp_path)
    copy.begin()
    copy.close(keep=True)
    assert not copy_of(tmp_path).is_whole


def test_a_copy_that_an_agent_still_has_is_not_shared(tmp_path: Path) -> None:
    first = whole(tmp_path)
    second = copy_of(tmp_path)
    assert not second.is_whole and second.path != first.path
    assert second.path.parts[-3] == "j-0.2"


def test_half_copies_are_swept_at_once_and_whole_ones_after_a_time(tmp_path: Path) -> None:
    half = copy_of(tmp_path, "half")
    half.begin()
    os.close(half._fd)  # as of an agent that was killed
    whole(tmp_path, "new").close(keep=True)
    running = whole(tmp_path, "running")
    sweep(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "running"]
    age(tmp_path)
    sweep(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["running"]
    assert (running.path / "train.py").exists()


@pytest.mark.parametrize("listed", [None, b"", b"junk"])
def test_what_was_left_before_its_list_was_written_is_swept(
    tmp_path: Path, listed: bytes | None
) -> None:
    home = tmp_path / "j-0"
    home.mkdir()
    (home / "mark").write_bytes(b"")
    if listed is not None:
        (home / "manifest").write_bytes(listed)
    sweep(tmp_path)
    assert not list(tmp_path.iterdir())


def test_what_ranks_have_written_outlives_a_sweep(tmp_path: Path) -> None:
    copy = whole(tmp_path)
    (copy.path / "result").write_text("42")
    copy.close(keep=False)
    sweep(tmp_path, old_s=0)
    assert (copy.path / "result").read_text() == "42"


def test_no_file_is_written_through_a_link(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("mine")
    jobs = tmp_path / "jobs"
    jobs.mkdir()
    copy = copy_of(jobs)
    copy.begin()
    (copy.path / "train.py").symlink_to(outside)
    assert copy.add(ENTRIES[2], fill)
    assert outside.read_text() == "mine"
