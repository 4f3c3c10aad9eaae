"""Importing torch_xla costs few garbage collections, and leaves the collector as it was."""

import subprocess
import sys

import pytest

CODE = """
import gc, torch
{before}
frozen = gc.get_freeze_count()
seen = []
gc.callbacks.append(lambda phase, info: seen.append(info["generation"]))
import torch_xla
during = len(seen) // 2
gc.callbacks.clear()
print(during, gc.isenabled(), (gc.get_freeze_count() > 0) == (frozen > 0))
"""


@pytest.mark.parametrize(
    ("before", "is_on"), [("", True), ("gc.disable()", False), ("gc.freeze()", True)]
)
def test_the_collector_rests_while_the_core_is_imported(before: str, is_on: bool) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE.format(before=before)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    during, *state = done.stdout.split()
    # What somebody has frozen stays frozen; Python 3.12 itself starts with some hundred objects.
    assert state == [str(is_on), "True"], done.stderr
    # 193 where it does not rest.
    assert int(during) < 50
