"""Nodes for tests: `xla-run --nnodes` on the hosts of a pod, each with an address of its own."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from node_jobs import WAITS
from pod import Pod

from torch_xdist.system import process_tree

PORT = "29401"


class TwoHosts:
    """Starts nodes on the hosts of a pod; node 0 is to be on host a. All write into one folder."""

    def __init__(self, start: Callable, pod: Pod, folder: Path) -> None:
        self._start, self._pod, self.folder = start, pod, folder
        self.address = pod.hosts["a"].address
        self.port = PORT
        folder.mkdir()

    def on(self, name: str, rank: int, body: str, *options: str, before: Sequence[str] = ()) -> Any:
        """Start a node on a host, `before` which may stand words."""
        (first,) = process_tree.children(self._pod.hosts[name]._process.pid)
        inside: tuple[str, ...] = ("nsenter", "-t", str(first), "-m", "-u", "-i", "-n", "-p")
        where = ("--master-addr", self.address, "--master-port", PORT)
        words = ("--nnodes", "2", "--node-rank", str(rank), *where, "-n", "2", *options)
        env = {"FOLDER": str(self.folder), "XLA_RUN_SECRET": "5e" * 32}
        whole = (*inside, "--", *before, "env", "-C", str(self.folder))
        return self._start(body, *words, env=env, before=whole)

    def both(self, body: str, *options: str) -> tuple[Any, Any]:
        return self.on("a", 0, body, *options), self.on("b", 1, body, *options)

    def running(self, *options: str, body: str = WAITS) -> tuple[Any, Any]:
        """Both, whose four ranks are all at work."""
        jobs = self.both(body, *options)
        end_s = time.monotonic() + 60
        while not all((self.folder / f"on{rank}").exists() for rank in range(4)):
            assert time.monotonic() < end_s, "\n".join(job.texts() for job in jobs)
            time.sleep(0.05)
        return jobs
