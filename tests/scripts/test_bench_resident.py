"""The script that looks whether resident memory stays flat."""

import json

import pytest
from scripts_as_modules import loaded


def test_memory_is_told_after_each_tenth(capsys: pytest.CaptureFixture) -> None:
    loaded("bench_resident").measure("steps", 10)
    found = json.loads(capsys.readouterr().out)
    assert (found["what"], found["count"], len(found["MB"])) == ("steps", 10, 10)
    assert all(100 < mb < 1e5 for mb in found["MB"])
    assert found["grown_mb"] == pytest.approx(found["MB"][-1] - found["MB"][0], abs=0.1)
