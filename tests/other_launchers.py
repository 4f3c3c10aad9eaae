"""The script that torchrun, srun and mpirun run in their tests, and what must be true of it."""

import json
import os
import subprocess
import uuid
from collections.abc import Mapping
from pathlib import Path

from processes import kill_marked

from torch_xdist.system import process_tree

SCRIPT = """
import json, os, sys, time

import torch
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.distributed.xla_multiprocessing as xmp

MAIN_PID = os.getpid()


def train(index, folder, main_pid, failing):
    mine = torch.full((3,), float(index + 1), device=xm.xla_device())
    total = xm.all_reduce(xm.REDUCE_SUM, mine)
    facts = {
        "index": index,
        "ordinal": xm.get_ordinal(),
        "world": xm.xrt_world_size(),
        "total": total.cpu().tolist(),
        "no_double_spawn": os.getpid() == main_pid,
    }
    with open(os.path.join(folder, f"rank-{index}.json"), "w") as file:
        json.dump(facts, file)
    xm.rendezvous("written")
    if failing and index == 1:
        raise ValueError("rank 1 gives up")
    if failing:
        xm.rendezvous("never met by rank 1")
    return total.cpu().tolist()


if __name__ == "__main__":
    failing = sys.argv[2] == "failing"
    print(xmp.spawn(train, args=(sys.argv[1], MAIN_PID, failing)), flush=True)
"""


def script_in(folder: Path) -> Path:
    """Write the script there; it takes a folder for its results, and "failing" or "well"."""
    path = folder / "train.py"
    path.write_text(SCRIPT)
    return path


def run(
    command: list[str],
    folder: Path,
    environ: Mapping[str, str] | None = None,
    limit_s: float = 90.0,
) -> subprocess.CompletedProcess[str]:
    """Run a launcher to its end; nothing that it started may be alive afterwards."""
    mark = f"XLA_RUN_TEST={uuid.uuid4().hex}"
    name, value = mark.split("=")
    launchers = ("XLA_RUN", "PJRT", "SLURM", "OMPI", "PMI", "RANK", "LOCAL_", "WORLD_", "MASTER_")
    plain = {k: v for k, v in os.environ.items() if not k.startswith(launchers)}
    environ = {**plain, "OMP_NUM_THREADS": "1", name: value, **(environ or {})}
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        out, _ = process.communicate(timeout=limit_s)
    finally:
        survivors = process_tree.marked(mark) - {process.pid}
        kill_marked(mark)
    assert not survivors, out
    return subprocess.CompletedProcess(command, process.returncode, out, "")


def check_ranks(folder: Path, world: int) -> None:
    """Every rank ran the function once, in the process the launcher started, and all met."""
    total = [float(sum(range(1, world + 1)))] * 3
    for rank in range(world):
        facts = json.loads((folder / f"rank-{rank}.json").read_text())
        assert facts == {
            "index": rank,
            "ordinal": rank,
            "world": world,
            "total": total,
            "no_double_spawn": True,
        }
    assert len(list(folder.glob("rank-*.json"))) == world
