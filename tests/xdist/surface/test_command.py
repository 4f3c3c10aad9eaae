"""`python -m torch_xdist.surface`, as it is called."""

import json
import subprocess
import sys


def surface(*arguments):
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "torch_xdist.surface", *arguments],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip


def test_a_line_for_each_name_and_the_totals():
    done = surface("torch_xla.debug.metrics")
    assert done.returncode == 0, done.stderr
    *lines, totals = done.stdout.splitlines()
    assert "there    torch_xla.debug.metrics.metrics_report" in lines
    assert totals == "10 names of torch_xla 2.9.0: 10 there, 0 differs, 0 absent"


def test_programs_get_json():
    done = surface("torch_xla.amp", "--status", "there", "--json")
    rows = json.loads(done.stdout)
    assert {row["status"] for row in rows} == {"there"}
    assert {row["module"] for row in rows} > {"torch_xla.amp", "torch_xla.amp.syncfree"}


def test_a_module_that_torch_xla_does_not_have_is_wrong_usage():
    done = surface("torch_xla.nothing")
    assert done.returncode == 2
    assert "torch_xla 2.9.0 has no module torch_xla.nothing" in done.stderr
