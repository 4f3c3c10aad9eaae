"""The benchmark of whole models: its peers take turns, and one that dies is named."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "bench_models.py"


def bench(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, SCRIPT, *words]
    environ = {**os.environ, **env}
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env=environ)


@pytest.mark.long
def test_peers_train_by_turns_and_the_table_has_ratios(tmp_path: Path) -> None:
    plot = tmp_path / "models.svg"
    ended = bench("mnist", "--peers", "eager", "--rounds", "1", "--plot", str(plot))
    assert ended.returncode == 0, ended.stderr
    *figures, names, _, row = ended.stdout.splitlines()
    told = [json.loads(line) for line in figures]
    assert [peer["peer"] for peer in told] == ["xdist", "eager"]
    assert all(peer["step_ms"] > 0 and peer["first_three_s"] > 0 for peer in told)
    assert names == "| model | xdist | eager |"
    assert row.startswith(f"| mnist | {told[0]['step_ms']:g} (1.00) | {told[1]['step_ms']:g} (")
    assert plot.read_text().count("<svg") == 1


def test_a_peer_that_dies_is_named(tmp_path: Path) -> None:
    (tmp_path / "torch_xla.py").write_text("raise SystemExit(3)")
    env = {"PYTHONPATH": str(tmp_path), "XDIST_PEER_PYTHON": sys.executable}
    ended = bench("mnist", "--peers", "torch_xla", "--rounds", "1", **env)
    assert ended.returncode == 1 and "bench_models: xdist ended with code 3" in ended.stderr


def test_an_unknown_model_is_named() -> None:
    ended = bench("bert")
    assert ended.returncode == 2 and "no such model or peer: bert" in ended.stderr
