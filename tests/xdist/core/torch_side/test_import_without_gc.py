"""Importing torch_xla costs few garbage collections, and leaves the collector as it was."""

import subprocess
import sys

import pytest

CODE = """
import gc, torch
{before}
seen = []
gc.callbacks.append(lambda phase, info: seen.append(info["generation"]))
import torch_xla
during = len(seen) // 2
gc.callbacks.clear()
print(during, gc.isenabled(), gc.get_freeze_count())
"""


@pytest.mark.parametrize(
    ("before", "told"), [("", "True 0"), ("gc.disable()", "False 0"), ("gc.freeze()", "True")]
)
def test_the_collector_rests_while_the_core_is_imported(before: str, told: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE.format(before=before)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    during, state = done.stdout.strip().split(" ", 1)
    assert state.startswith(told), done.stderr
    # 193 where it does not rest.
    assert int(during) < 50
    if before == "gc.freeze()":
        assert int(state.split()[1]) > 0, "what somebody has frozen stays frozen"
