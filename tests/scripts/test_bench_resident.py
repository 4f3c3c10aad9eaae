"""The script that looks whether resident memory stays flat."""

import importlib.util
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_memory_is_told_after_each_tenth(capsys: pytest.CaptureFixture) -> None:
    spec = importlib.util.spec_from_file_location("resident", ROOT / "scripts/bench_resident.py")
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    script.measure("steps", 10)
    found = json.loads(capsys.readouterr().out)
    assert (found["what"], found["count"], len(found["MB"])) == ("steps", 10, 10)
    assert all(100 < mb < 1e5 for mb in found["MB"])
    assert found["grown_mb"] == pytest.approx(found["MB"][-1] - found["MB"][0], abs=0.1)
