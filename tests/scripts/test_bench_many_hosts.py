"""`scripts/bench_many_hosts.py`: jobs of many simulated nodes, ended in each of its ways."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "bench_many_hosts.py"


def measured(*words: str) -> list[dict[str, float]]:
    done = subprocess.run([sys.executable, SCRIPT, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_job_of_many_nodes_meets_and_ends_in_each_way() -> None:
    found = measured("--nodes", "100", "--ranks", "4", "--settle", "0", "--seconds", "1")
    assert [(one["end"], one["code"]) for one in found] == [
        *(("fail", 1), ("flood", 1), ("vanish", 73)),
    ]


# The bounds are what a job of this size may take anywhere, not what it takes here.
@pytest.mark.long
def test_a_job_of_a_thousand_nodes_meets_and_is_judged_in_time() -> None:
    (found,) = measured(
        "--nodes", "1024", "--ranks", "8", "--settle", "0", "--seconds", "5", "--ends", "flood"
    )
    assert found["code"] == 1
    assert found["memory_mb"] < 1000
    assert found["rendezvous_s"] < 60 and found["verdict_s"] < 30
