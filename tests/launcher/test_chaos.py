"""The chaos run, within its ten minutes."""

import subprocess
import sys
from pathlib import Path

import pytest

CHAOS = Path(__file__).parents[1] / "chaos.py"


@pytest.mark.long
@pytest.mark.timeout(900)
def test_fifty_random_faults_end_as_they_should() -> None:
    words = [sys.executable, str(CHAOS), "--rounds", "50", "--minutes", "10"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=850)
    assert done.returncode == 0, done.stdout
    assert ", 0 not as they should be" in done.stdout
