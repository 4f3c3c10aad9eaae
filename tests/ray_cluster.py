"""A Ray cluster of two nodes on loopback for tests, which is all gone afterwards."""

import contextlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from torch_xdist.launcher.on_host.coordinator import free_port
from torch_xdist.system import process, process_tree

_MEMORY = "--object-store-memory=78643200"


def missing() -> str:
    """Why there can be none here; "" where there can."""
    return "" if importlib.util.find_spec("ray") else "not installed: ray (pip install ray)"


@dataclass
class Cluster:
    """Where it is, also for a Ray client, and the processes of its nodes, the head's first."""

    address: str
    client: str
    folder: Path
    mark: str
    nodes: list[subprocess.Popen[bytes]]

    def environ(self) -> dict[str, str]:
        return {"RAY_ADDRESS": self.address}

    def of_node(self, index: int, name: str) -> list[int]:
        """The processes with this word in their command below a node."""
        below, todo = [], [self.nodes[index].pid]
        while todo:
            below += (found := process_tree.children(todo.pop()))
            todo += found
        return [pid for pid in below if name in _command(pid)]


def _left(cluster: Cluster, below: set[int]) -> set[int]:
    """What is still alive of it."""
    return process_tree.marked(cluster.mark) | {
        pid for pid in below if process.state(pid) not in "Z"
    }


def _command(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    return ""


@contextlib.contextmanager
def running() -> Iterator[Cluster]:
    """The cluster: two nodes of 4 CPUs each."""
    # Paths of its sockets are long, and a kernel's limit is 107 bytes.
    folder = Path(tempfile.mkdtemp(prefix="xr", dir="/tmp"))
    name, value = "XDIST_TEST_RAY", uuid.uuid4().hex
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "XLA_RUN"))}
    environ |= {name: value, "RAY_enable_worker_prestart": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    environ |= {"RAY_prestart_worker_first_driver": "0", "RAY_health_check_period_ms": "500"}
    address = f"127.0.0.1:{free_port()}"
    client = f"127.0.0.1:{free_port()}"
    first = ["--head", f"--port={address.partition(':')[2]}", "--node-ip-address=127.0.0.1"]
    first += [f"--temp-dir={folder}", "--include-dashboard=false"]
    first += [f"--ray-client-server-port={client.partition(':')[2]}"]
    cluster = Cluster(address, f"ray://{client}", folder, f"{name}={value}", [])
    try:
        with open(folder / "log", "wb") as log:
            second = [f"--address={address}", "--node-ip-address=127.0.0.2"]
            for index, options in enumerate((first, second)):
                words = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", _MEMORY]
                words += ["--num-cpus=4", "--num-gpus=0", *options]
                node = subprocess.Popen(
                    words, env=environ, cwd=folder, stdout=log, stderr=log, start_new_session=True
                )
                cluster.nodes.append(node)
                _wait_for_nodes(cluster, index + 1)
        yield cluster
    finally:
        roots = [node.pid for node in cluster.nodes]
        # Ray gives its agents titles, which overwrite the environment that a mark is found in.
        below = set().union(*map(process_tree.descendants, roots))
        process_tree.sweep(cluster.mark, {os.getpid()}, roots, limit_s=10.0)
        for node in cluster.nodes:
            node.wait(30)
        # What a node started is reaped by init, and has to be gone.
        end_s = time.monotonic() + 10.0
        while (left := _left(cluster, below)) and time.monotonic() < end_s:
            time.sleep(0.05)
        assert not left, [_command(pid) for pid in left]
        shutil.rmtree(folder, ignore_errors=True)


def _wait_for_nodes(cluster: Cluster, count: int, limit_s: float = 90.0) -> None:
    from ray._raylet import GcsClient

    end_s = time.monotonic() + limit_s
    while True:
        with contextlib.suppress(Exception):
            if len(GcsClient(address=cluster.address).get_all_node_info()) >= count:
                return
        log = (cluster.folder / "log").read_text(errors="replace")[-3000:]
        assert time.monotonic() < end_s and cluster.nodes[-1].poll() is None, log
        time.sleep(0.2)
