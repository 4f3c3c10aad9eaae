"""The same script under a real srun, in a Slurm of two nodes that the test starts on loopback."""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from other_launchers import check_ranks, run, script_in

from torch_xdist.launcher.on_host.coordinator import free_port

NEEDED = ("munged", "slurmctld", "slurmd", "srun", "sinfo")
PATH = os.environ["PATH"] + ":/usr/sbin"
MISSING = [name for name in NEEDED if not shutil.which(name, path=PATH)]
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}"),
    pytest.mark.skipif(os.getuid() != 0, reason="slurmd must be started by root"),
]

CONFIG = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={control_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.sock
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
PlugStackConfig=/dev/null
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/linear
MpiDefault=none
KillWait=5
SlurmdParameters=config_overrides
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={port_1} CPUs=2 State=UNKNOWN
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={port_2} CPUs=2 State=UNKNOWN
PartitionName=test Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP
"""


def daemons(folder: Path, config: Path) -> list[list[str]]:
    munge = ["munged", "--foreground", "--force", f"--socket={folder}/munge.sock"]
    names = (("key-file", "munge.key"), ("pid-file", "munge.pid"), ("seed-file", "munge.seed"))
    munge += [f"--{option}={folder}/{name}" for option, name in names]
    control = ["slurmctld", "-D", "-i", "-f", str(config)]
    nodes = [["slurmd", "-D", "-N", name, "-f", str(config)] for name in ("n1", "n2")]
    return [munge, control, *nodes]


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A Slurm of two nodes; the environment in which srun finds it."""
    folder = tmp_path_factory.mktemp("slurm")
    for name in ("state", "spool-n1", "spool-n2"):
        (folder / name).mkdir()
    (folder / "munge.key").write_bytes(os.urandom(1024))
    (folder / "munge.key").chmod(0o600)
    config = folder / "slurm.conf"
    config.write_text(
        CONFIG.format(
            host=socket.gethostname().split(".")[0],
            folder=folder,
            control_port=free_port(),
            port_1=free_port(),
            port_2=free_port(),
        )
    )
    environ = {
        **os.environ,
        "SLURM_CONF": str(config),
        "PATH": PATH,
    }
    with contextlib.ExitStack() as stack, open(folder / "daemons.log", "wb") as log:
        for command in daemons(folder, config):
            process = subprocess.Popen(command, env=environ, stdout=log, stderr=log)
            stack.callback(process.wait, 30)
            stack.callback(process.terminate)
            wait_for_munge(folder / "munge.sock")
        wait_until_idle(environ, folder)
        yield environ


def wait_for_munge(socket_path: Path, limit_s: float = 30.0) -> None:
    """A daemon of Slurm that finds no munged does not try again."""
    end_s = time.monotonic() + limit_s
    while not socket_path.exists():
        assert time.monotonic() < end_s, "munged made no socket"
        time.sleep(0.05)


def wait_until_idle(environ: dict[str, str], folder: Path, limit_s: float = 60.0) -> None:
    end_s = time.monotonic() + limit_s
    while True:
        asked = subprocess.run(
            ["sinfo", "--noheader", "--format=%T"], env=environ, capture_output=True, text=True
        )
        if asked.stdout.strip() == "idle":
            return
        logs = (folder / "daemons.log").read_text()[-3000:]
        assert time.monotonic() < end_s, f"{asked.stdout}{asked.stderr}\n{logs}"
        time.sleep(0.3)


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
