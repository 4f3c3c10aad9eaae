"""What git says is to be left out, inside of repositories and without one."""

import subprocess
from pathlib import Path

import pytest

from torch_xdist.launcher.facts.errors import PreflightError
from torch_xdist.launcher.shipping import ignored, tree


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    # Rules of whoever runs the tests are none of ours.
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    made = tmp_path.resolve() / "code"
    made.mkdir()
    return made


def git(folder: Path, *words: str) -> None:
    subprocess.run(["git", "-C", str(folder), *words], check=True, capture_output=True)


def write(root: Path, **files: str) -> None:
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)


def paths(root: Path) -> list[str]:
    return [entry.path for entry in tree.read(root).entries]


@pytest.mark.parametrize("is_repository", [True, False])
def test_rules_hold_in_a_repository_and_without_one(root: Path, is_repository: bool) -> None:
    if is_repository:
        git(root, "init", "-q")
    (root / ".gitignore").write_text("runs/\n*.pt\n!kept.pt\n")
    write(root, runs__old="", sub__x="", sub__y="", train="")
    (root / "sub/.gitignore").write_text("y\n")
    for name in ("a.pt", "kept.pt"):
        (root / name).write_text("")
    assert paths(root) == [".gitignore", "kept.pt", "sub", "sub/.gitignore", "sub/x", "train"]


def test_a_tracked_file_travels_whatever_the_rules_say(root: Path) -> None:
    git(root, "init", "-q")
    write(root, model="")
    git(root, "add", "model")
    (root / ".gitignore").write_text("model\n")
    assert paths(root) == [".gitignore", "model"]


def test_the_rules_of_a_folder_above_hold(root: Path) -> None:
    git(root, "init", "-q")
    (root / ".gitignore").write_text("*.log\n")
    write(root, sub__train="")
    (root / "sub/x.log").write_text("")
    assert paths(root / "sub") == ["train"]


def test_an_ignored_folder_that_is_asked_for_itself_is_shipped(root: Path) -> None:
    git(root, "init", "-q")
    (root / ".gitignore").write_text("build/\n")
    write(root, build__train="")
    assert paths(root / "build") == ["train"]


def test_a_repository_in_another_one_has_its_own_rules(root: Path) -> None:
    git(root, "init", "-q")
    write(root, inner__x="", inner__y="")
    git(root / "inner", "init", "-q")
    (root / "inner/.gitignore").write_text("y\n")
    assert paths(root) == ["inner", "inner/.gitignore", "inner/x"]


def test_the_environment_names_no_other_repository(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "nowhere"))
    (root / ".gitignore").write_text("x\n")
    write(root, x="")
    assert paths(root) == [".gitignore"]


@pytest.fixture
def no_git(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ignored, "_has_git", lambda: False)


@pytest.mark.usefixtures("no_git")
@pytest.mark.parametrize("name", [".git", "sub/.gitignore"])
def test_without_git_rules_that_it_alone_knows_are_refused(root: Path, name: str) -> None:
    (root / "sub").mkdir()
    (root / name).write_text("")
    told = f"git is not installed here, and only git can say what .*{name} leaves out; install git"
    with pytest.raises(PreflightError, match=told):
        tree.read(root)


@pytest.mark.usefixtures("no_git")
def test_without_git_a_folder_without_rules_is_shipped(root: Path) -> None:
    write(root, train="")
    assert paths(root) == ["train"]


def test_a_machine_without_git_is_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not ignored._has_git()


def answers(monkeypatch: pytest.MonkeyPatch, code: int, said: bytes) -> None:
    done = subprocess.CompletedProcess([], code, b"", said)
    monkeypatch.setattr(ignored, "_git", lambda *words: done)


def test_the_repository_of_another_user_is_refused_in_gits_words(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers(monkeypatch, 128, b"fatal: detected dubious ownership in repository at '/x'")
    with pytest.raises(PreflightError, match="git cannot say what is ignored there: fatal: detect"):
        tree.read(root)


def test_a_git_that_fails_is_told(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers(monkeypatch, 3, b"")
    with pytest.raises(PreflightError, match="git cannot say what is ignored there: code 3"):
        tree.read(root)


def test_a_git_that_hangs_is_ended(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ignored, "_LIMIT_S", 0.2)
    tools = root.parent / "bin"
    tools.mkdir()
    (tools / "git").write_text('#!/bin/sh\n[ "$1" = --version ] || exec sleep 60\n')
    (tools / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:/usr/bin:/bin")
    with pytest.raises(PreflightError, match=r"git did not say in 0.2 s what is ignored there"):
        tree.read(root)
