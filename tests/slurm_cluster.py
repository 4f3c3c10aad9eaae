"""A Slurm of two nodes on loopback for tests: munged, slurmctld and two slurmd of its own."""

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from torch_xdist.launcher.on_host.coordinator import free_port

NEEDED = ("munged", "slurmctld", "slurmd", "srun", "salloc", "sbatch", "scancel", "sinfo")
PATH = os.environ["PATH"] + ":/usr/sbin"

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


def missing() -> str:
    """Why there can be none here; "" where there can."""
    absent = [name for name in NEEDED if not shutil.which(name, path=PATH)]
    if absent:
        return f"not installed: {', '.join(absent)}"
    return "" if os.getuid() == 0 else "slurmd must be started by root"


@contextlib.contextmanager
def running(folder: Path) -> Iterator[dict[str, str]]:
    """The environment in which srun finds it; all is gone afterwards.

    Args:
        folder: an empty one, for its files.
    """
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
        wait_until_idle(environ)
        yield environ


def wait_for_munge(socket_path: Path, limit_s: float = 30.0) -> None:
    """A daemon of Slurm that finds no munged does not try again."""
    end_s = time.monotonic() + limit_s
    while not socket_path.exists():
        assert time.monotonic() < end_s, "munged made no socket"
        time.sleep(0.05)


def wait_until_idle(environ: dict[str, str], limit_s: float = 60.0) -> None:
    """Until both nodes can take a job."""
    folder = Path(environ["SLURM_CONF"]).parent
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
