"""The same script under a real mpirun: its ranks are ours, and no process is started twice."""

import shutil
import sys
from pathlib import Path

import pytest
from other_launchers import check_ranks, run, script_in

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not shutil.which("mpirun"), reason="mpirun (openmpi-bin) is not installed"),
]
MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2", sys.executable]


@pytest.mark.parametrize("transport", ["host", "mesh"])
def test_the_ranks_of_mpirun_meet_and_nothing_is_spawned(tmp_path: Path, transport: str) -> None:
    command = [*MPIRUN, str(script_in(tmp_path)), str(tmp_path), "well"]
    done = run(command, tmp_path, {"XDIST_TRANSPORT": transport})
    assert done.returncode == 0, done.stdout
    check_ranks(tmp_path, 2)


def test_a_rank_that_fails_ends_the_others_under_mpirun(tmp_path: Path) -> None:
    done = run([*MPIRUN, str(script_in(tmp_path)), str(tmp_path), "failing"], tmp_path)
    assert done.returncode == 1
    assert "ValueError: rank 1 gives up" in done.stdout
