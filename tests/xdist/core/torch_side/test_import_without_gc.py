"""Importing torch_xla costs few garbage collections, and afterwards there are fewer."""

import json
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


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", [10_000, "others"]),
        ("gc.set_threshold(900, 5, 7)", [900, 5, 7]),
        # Python 3.14's, and none at all.
        pytest.param("gc.set_threshold(2000, 10, 0)", [10_000, 10, 0], marks=pytest.mark.long),
        pytest.param("gc.set_threshold(0)", [0, "others"], marks=pytest.mark.long),
    ],
)
def test_collections_are_rarer_where_the_user_has_not_said_how_many(before, after) -> None:
    code = f"import gc; {before}\nhad = gc.get_threshold()\nimport torch_xla\n"
    code += "print(list(gc.get_threshold()), list(had))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    now, had = (json.loads(part + "]") for part in done.stdout.strip().split("]")[:2])
    expected = [after[0], *had[1:]] if "others" in after else after
    assert now == expected, done.stderr
