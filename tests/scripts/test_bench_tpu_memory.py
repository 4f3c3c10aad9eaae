"""The memory of a chip that a step needs, as `scripts/bench_tpu_memory.py` tells it."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "bench_tpu_memory.py"
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        importlib.util.find_spec("libtpu") is None,
        reason="libtpu, the TPU compiler, is not installed",
    ),
]


@pytest.mark.timeout(900)
def test_nothing_is_written_out_for_each_tap_of_a_window_or_a_kernel() -> None:
    words = [sys.executable, str(SCRIPT), "--only", "maxima,means,depthwise"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert [one["what"] for one in found] == ["maxima", "means", "depthwise"]
    # With an array for each tap: 4,834, 1,761 and 4,838.
    assert all(one["mb"] < 1000 for one in found)
