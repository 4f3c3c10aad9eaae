"""The same script under the real torchrun: its ranks are ours, and no process is started twice."""

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from other_launchers import check_ranks, run, script_in

from torch_xdist.launcher.on_host.coordinator import free_port

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]


def static() -> list[str]:
    return [*TORCHRUN, "--rdzv-backend=static", f"--master-port={free_port()}", "--nnodes=1"]


@pytest.mark.long
def test_the_ranks_of_torchrun_meet_and_nothing_is_spawned(tmp_path: Path) -> None:
    done = run([*TORCHRUN, str(script_in(tmp_path)), str(tmp_path), "well"], tmp_path)
    assert done.returncode == 0, done.stdout
    check_ranks(tmp_path, 2)
    assert done.stdout.count("[[3.0, 3.0, 3.0]]") == 2


@pytest.mark.long
def test_a_rank_that_fails_ends_the_others_under_torchrun(tmp_path: Path) -> None:
    done = run([*TORCHRUN, str(script_in(tmp_path)), str(tmp_path), "failing"], tmp_path)
    assert done.returncode == 1
    assert "ValueError: rank 1 gives up" in done.stdout


@pytest.mark.long
def test_two_jobs_of_torchrun_on_one_host_do_not_mix(tmp_path: Path) -> None:
    # Without a rendezvous of its own every job has torchrun's default id, "none".
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        folder.mkdir()
    with ThreadPoolExecutor() as pool:
        jobs = [
            pool.submit(run, [*static(), str(script_in(folder)), str(folder), "well"], folder)
            for folder in folders
        ]
        assert [job.result().returncode for job in jobs] == [0, 0]
    for folder in folders:
        check_ranks(folder, 2)


SPMD = """
import numpy as np, torch
import torch_xla, torch_xla.runtime as xr, torch_xla.distributed.spmd as xs

xr.use_spmd()
count = xr.global_runtime_device_count()
x = torch.ones(count, 2).to("xla")
xs.mark_sharding(x, xs.get_1d_mesh("data"), ("data", None))
where = f"process {xr.process_index()} of {xr.process_count()}"
print(f"{where}: {count} devices, sum {x.sum().item()}\\n", end="", flush=True)
"""


@pytest.mark.long
def test_processes_of_torchrun_are_one_rank_with_spmd(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SPMD)
    done = run([*TORCHRUN, str(script)], tmp_path, {"CPU_NUM_DEVICES": "2"})
    assert done.returncode == 0, done.stdout
    for process in range(2):
        assert f"process {process} of 2: 4 devices, sum 8.0" in done.stdout
