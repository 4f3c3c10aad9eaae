"""The same script under a real srun, in a Slurm of two nodes that the test starts on loopback."""

import sys
from pathlib import Path

import pytest
from other_launchers import check_ranks, run, script_in

pytestmark = pytest.mark.long


def test_the_tasks_of_srun_meet_and_nothing_is_spawned(
    slurm: dict[str, str], tmp_path: Path
) -> None:
    script = str(script_in(tmp_path))
    done = run(
        ["srun", "-N1", "-n2", sys.executable, script, str(tmp_path), "well"], tmp_path, slurm
    )
    assert done.returncode == 0, done.stdout
    check_ranks(tmp_path, 2)


def test_tasks_on_two_nodes_meet_over_the_network(slurm: dict[str, str], tmp_path: Path) -> None:
    command = ["srun", "-N2", "-n2", sys.executable, str(script_in(tmp_path)), str(tmp_path)]
    # The nodes' names are made up; in a real cluster the first one is the address.
    done = run([*command, "well"], tmp_path, {**slurm, "MASTER_ADDR": "127.0.0.1"})
    assert done.returncode == 0, done.stdout
    check_ranks(tmp_path, 2)


def test_a_task_that_fails_ends_the_others_under_srun(
    slurm: dict[str, str], tmp_path: Path
) -> None:
    command = [
        "srun",
        "-N1",
        "-n2",
        "--kill-on-bad-exit=1",
        sys.executable,
        str(script_in(tmp_path)),
    ]
    done = run([*command, str(tmp_path), "failing"], tmp_path, slurm)
    # srun ends with the highest code of its tasks, those that it killed included.
    assert done.returncode != 0
    assert "ValueError: rank 1 gives up" in done.stdout


def test_a_batch_script_is_no_task_so_spawn_starts_its_ranks(
    slurm: dict[str, str], tmp_path: Path
) -> None:
    script = script_in(tmp_path)
    batch = tmp_path / "job.sh"
    batch.write_text(f"#!/bin/sh\nexec {sys.executable} {script} {tmp_path} well\n")
    command = ["sbatch", "--wait", "-N1", "-n2", f"--output={tmp_path}/out", str(batch)]
    done = run(command, tmp_path, {**slurm, "CPU_NUM_DEVICES": "2"})
    out = (tmp_path / "out").read_text()
    assert done.returncode == 0, out
    assert "2 ranks on 1 host, CPU (shared memory)" in out
    assert "[[3.0, 3.0, 3.0], [3.0, 3.0, 3.0]]" in out
