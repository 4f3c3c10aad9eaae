"""The folder as it is read at the head: what is in it, and why it cannot be shipped."""

import hashlib
import os
import socket
import subprocess
from pathlib import Path

import pytest

from torch_xdist.launcher.facts.errors import PreflightError, UsageError
from torch_xdist.launcher.shipping import tree
from torch_xdist.launcher.shipping.manifest import FILE, FOLDER, LINK


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made = tmp_path.resolve() / "code"
    made.mkdir()
    return made


def paths(root: Path) -> list[str]:
    return [entry.path for entry in tree.read(root).entries]


def test_files_folders_and_links_are_read_with_their_facts(root: Path) -> None:
    (root / "pkg").mkdir()
    (root / "pkg/run.sh").write_bytes(b"x")
    (root / "pkg/run.sh").chmod(0o755)
    (root / "link").symlink_to("pkg/run.sh")
    found = tree.read(root)
    assert found.name == "code"
    assert [(one.path, one.kind) for one in found.entries] == [
        *(("link", LINK), ("pkg", FOLDER), ("pkg/run.sh", FILE)),
    ]
    assert found.entries[0].content == "pkg/run.sh"
    file = found.entries[2]
    assert file.content == hashlib.sha256(b"x").hexdigest() and file.is_executable
    assert (file.size, file.mtime_ns) == (1, (root / "pkg/run.sh").stat().st_mtime_ns)


def test_caches_repositories_and_environments_stay_here(root: Path) -> None:
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    for name in ("__pycache__", "venv", ".mypy_cache"):
        (root / name).mkdir()
        (root / name / "x").write_text("")
    (root / "venv/pyvenv.cfg").write_text("")
    (root / "old.pyc").write_text("")
    (root / "train.py").write_text("")
    assert paths(root) == ["train.py"]


def test_a_socket_and_a_pipe_are_nothing_to_ship(root: Path) -> None:
    os.mkfifo(root / "pipe")
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(root / "socket"))
        assert paths(root) == []


def test_a_link_that_names_its_place_absolutely_leads_there_in_the_copy_too(root: Path) -> None:
    (root / "data").mkdir()
    (root / "data/x").write_text("")
    (root / "pkg").mkdir()
    (root / "pkg/link").symlink_to(root / "data/x")
    link = tree.read(root).entries[-1]
    assert (link.path, link.content) == ("pkg/link", "../data/x")


@pytest.mark.parametrize("target", ["/etc/passwd", "../other", "there/../../other"])
def test_a_link_that_leads_out_is_named(root: Path, target: str) -> None:
    (root / "there").mkdir()
    (root / "link").symlink_to(target)
    told = f"the link link leads out of it, to {target}; copy what is there into it, or leave"
    with pytest.raises(UsageError, match=told):
        tree.read(root)


def test_a_link_that_leads_out_over_another_link_is_named(root: Path) -> None:
    (root / ".gitignore").write_text("out\n")
    (root / "out").symlink_to("..")
    (root / "link").symlink_to("out/x")
    with pytest.raises(UsageError, match="the link link leads out of it, to out/x"):
        tree.read(root)


def test_a_folder_that_is_too_large_is_told_with_its_largest_files(root: Path) -> None:
    (root / "weights").write_bytes(bytes(3_000_000))
    (root / "train.py").write_bytes(bytes(1000))
    told = (
        r"it has 3 MB, and at most 2 MB are shipped; the largest files are weights \(3 MB\), "
        r"train.py \(1 kB\); leave out what is no code by lines in .gitignore, or allow more by"
    )
    with pytest.raises(UsageError, match=told):
        tree.read(root, 2_000_000)


def test_a_folder_of_too_many_files_is_told_with_where_they_are(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tree, "MOST_ENTRIES", 5)
    (root / "data").mkdir()
    for number in range(9):
        (root / f"data/{number}").write_text("")
    with pytest.raises(UsageError, match=r"it has more than 5 files; most are in data \(5 files\)"):
        tree.read(root)


@pytest.mark.parametrize("is_folder", [True, False])
def test_what_cannot_be_read_is_named(
    root: Path, is_folder: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = root / "secret"
    if is_folder:
        path.mkdir()
    else:
        path.touch()
    # By hand, because root may read everything.
    name, scandir, chunks = ("scandir" if is_folder else "chunks"), os.scandir, tree.chunks

    def may(given: object, *rest: int) -> object:
        if Path(str(given)).name == "secret":
            raise PermissionError(13, "Permission denied")
        return scandir(given) if is_folder else chunks(given, *rest)

    monkeypatch.setattr(os if is_folder else tree, name, may)
    told = "secret cannot be read: Permission denied; make it readable, or leave it out by a line"
    with pytest.raises(PreflightError, match=told):
        tree.read(root)


def test_what_is_appended_meanwhile_is_no_part_of_it(root: Path) -> None:
    (root / "log").write_bytes(b"abcd")
    assert b"".join(tree.chunks(root / "log", 3)) == b"abc"
    assert b"".join(tree.chunks(root / "log", 9)) == b"abcd"
