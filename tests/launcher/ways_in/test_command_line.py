"""What a command line means, without a job."""

import sys
from pathlib import Path

import pytest

from torch_xdist.launcher.facts.errors import UsageError
from torch_xdist.launcher.ways_in import command_line


@pytest.fixture
def script(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text("pass")
    return tmp_path


def test_a_script_of_this_python_runs_warm(script: Path) -> None:
    for words in (
        [sys.executable, "train.py", "--lr", "1"],
        [sys.executable, "-u", "train.py", "--lr", "1"],
    ):
        found = command_line.read(words, str(script))
        assert found == command_line.Command(
            "script", (str(script / "train.py"), "--lr", "1"), str(script)
        )
    assert command_line.read(["train.py"], str(script)).kind == "script"


def test_a_module_of_this_python_runs_warm(script: Path) -> None:
    found = command_line.read([sys.executable, "-m", "train", "x"], str(script))
    assert found == command_line.Command("module", ("train", "x"), str(script))


@pytest.mark.parametrize("words", [["sh", "-c", "x"], [sys.executable, "-X", "dev", "train.py"]])
def test_anything_else_is_a_program(words: list[str], script: Path) -> None:
    assert command_line.read(words, str(script)) == command_line.Command("program", tuple(words))


def test_a_directory_runs_its_main(script: Path) -> None:
    (script / "app").mkdir()
    with pytest.raises(UsageError, match=r"'app' is a directory without a __main__\.py"):
        command_line.read([sys.executable, "app"], str(script))
    (script / "app" / "__main__.py").write_text("pass")
    found = command_line.read([sys.executable, "app"], str(script))
    assert found.argv == (str(script / "app" / "__main__.py"),)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "xla-run: no command; write it after the options: python train.py"),
        ([sys.executable, "other.py"], r"script 'other\.py' does not exist in "),
        (["no-such-program"], "'no-such-program' is no program on PATH"),
    ],
)
def test_what_cannot_be_run_is_refused(words: list[str], message: str, script: Path) -> None:
    with pytest.raises(UsageError, match=message):
        command_line.read(words, str(script))


def test_a_module_may_be_named_without_python() -> None:
    found = command_line.read(["pkg.train", "--lr", "1"], "/here", is_module=True)
    assert found == command_line.Command("module", ("pkg.train", "--lr", "1"), "/here")
