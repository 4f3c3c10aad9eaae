"""`scripts/bench_busy.py` and `bench_depth.py` print what the table of benchmarks reads."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def lines_of(*words: str) -> list[dict]:
    done = subprocess.run(
        [sys.executable, *words], cwd=ROOT, capture_output=True, text=True, timeout=300, check=True
    )
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def test_a_loop_is_told_beside_its_program_alone() -> None:
    words = "--device-ms 0.1 --steps 5 --rounds 2".split()
    lines = lines_of("scripts/bench_busy.py", *words)
    assert [line["way"] for line in lines] == ["ahead", "item", "pure"]
    for line in lines:
        # Both are rounded to a microsecond.
        assert abs(line["busy"] - line["device_ms"] / line["step_ms"]) < 0.02 * line["busy"] + 0.001
    ahead, item, _ = lines
    assert item["item_to_ahead"] > 0
    apart = (item["record_ms"] + item["device_ms"]) / ahead["step_ms"]
    assert abs(item["apart_to_ahead"] - apart) < 0.02 * apart + 0.001


@pytest.mark.long
def test_deep_models_are_told_beside_shallow_ones() -> None:
    lines = lines_of("scripts/bench_depth.py", "--layers", "1,2", "--rounds", "1")
    assert [(line["form"], line["layers"]) for line in lines[:4]] == [
        ("plain", 1), ("scan_layers", 1), ("plain", 2), ("scan_layers", 2)
    ]  # fmt: skip
    for line in lines[4:]:
        of_form = [x["compiling_s"] for x in lines[:4] if x["form"] == line["form"]]
        assert abs(line["deepest_to_shallowest"] - of_form[1] / of_form[0]) < 0.05
