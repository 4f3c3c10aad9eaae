"""What a step costs in rows, calls, bytecodes and HLO instructions does not grow unseen."""

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from scripts_as_modules import loaded

ROOT = Path(__file__).resolve().parents[2]
Patch, Capture = pytest.MonkeyPatch, pytest.CaptureFixture
SCRIPT = ROOT / "scripts" / "count_steps.py"
OF_ANOTHER_RELEASE = 3


def counted(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, SCRIPT, *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


@pytest.fixture
def script(monkeypatch: Patch) -> ModuleType:
    """The script, whose variable and path are taken back."""
    monkeypatch.setenv("XDIST_EXPLAIN_RECOMPILES", "1")
    monkeypatch.setattr(sys, "path", [*sys.path])
    return loaded("count_steps")


def test_a_step_costs_no_more_than_is_written() -> None:
    ended = counted("--check")
    if ended.returncode == OF_ANOTHER_RELEASE:
        pytest.skip(ended.stderr)
    assert ended.returncode == 0, ended.stderr
    figures = [json.loads(line) for line in ended.stdout.splitlines()]
    assert len(figures) == 8 and all(model["programs"] == 1 for model in figures)


def test_a_number_above_the_margin_is_told_and_one_below_is_not(script: ModuleType) -> None:
    written = {"rows": 100, "calls": 1000, "instructions": 2000}
    found = {"rows": 105, "calls": 1051, "instructions": 1000}
    assert script.grown(found, written) == ["calls 1,051, +5.1% of 1,000"]


def test_a_step_that_has_grown_ends_with_1_and_says_what_to_do(
    script: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    kept = {"of": script.versions(), "steps": {"digits": {"rows": 30, "calls": 10}}}
    written = tmp_path / "counts.json"
    written.write_text(json.dumps(kept))
    monkeypatch.setattr(script, "WRITTEN", written)
    monkeypatch.setattr(script, "counts_of", lambda name, most: {"rows": 31, "calls": 11})
    monkeypatch.setattr(sys, "argv", ["count_steps.py", "--check"])
    assert script.main() == 1
    told = capsys.readouterr().err
    assert "a step costs more than is written:\ndigits: calls 11, +10.0% of 10\n" in told
    assert "count_steps.py --write" in told
    monkeypatch.setattr(sys, "argv", ["count_steps.py", "--write"])
    assert script.main() == 0
    assert json.loads(written.read_text())["steps"] == {"digits": {"rows": 31, "calls": 11}}


def test_figures_of_another_release_are_compared_with_nothing(
    script: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    written = tmp_path / "counts.json"
    written.write_text(json.dumps({"of": {"python": "2.7"}, "steps": {}}))
    monkeypatch.setattr(script, "WRITTEN", written)
    monkeypatch.setattr(sys, "argv", ["count_steps.py", "--check"])
    with pytest.raises(SystemExit) as ended:
        script.main()
    assert ended.value.code == OF_ANOTHER_RELEASE
    assert "counts.json is of {'python': '2.7'}, this is {'python': " in capsys.readouterr().err


def test_an_unknown_model_is_named() -> None:
    ended = counted("bert")
    assert ended.returncode == 2 and "no such model: bert" in ended.stderr
