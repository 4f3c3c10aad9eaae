"""Nodes for tests: `xla-run --nnodes` with real processes, all of them on this machine."""

import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

SECRET = "5e" * 32
WAITS = "say('on%d' % RANK); time.sleep(200)"


class Nodes:
    """Starts nodes of one job; all of their ranks write into `folder`."""

    def __init__(self, start: Callable, folder: Path) -> None:
        self._start, self.folder = start, folder
        folder.mkdir(exist_ok=True)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]

    def node(self, rank: int, body: str, *options: str, nnodes: int | str = 2, **more: Any) -> Any:
        """Start one; options that stand twice are as the last one says."""
        where = ("--master-addr", "127.0.0.1", "--master-port", str(self.port))
        words = ("--nnodes", str(nnodes), "--node-rank", str(rank), *where, "-n", "2", *options)
        own = {"FOLDER": str(self.folder), "XLA_RUN_SECRET": SECRET, "OWN": f"of {rank}"}
        env = {name: value for name, value in {**own, **more.pop("env", {})}.items() if value}
        return self._start(body, *words, env=env, **more)

    def both(self, body: str, *options: str) -> tuple[Any, Any]:
        return self.node(0, body, *options), self.node(1, body, *options)

    def running(self, body: str = WAITS, *options: str) -> tuple[Any, Any]:
        """Both, whose four ranks are all at work."""
        jobs = self.both(body, *options)
        self.all_on(jobs)
        return jobs

    def all_on(self, jobs: tuple[Any, ...], ranks: int = 4) -> None:
        for rank in range(ranks):
            self.wait_for(f"on{rank}", jobs)

    def wait_for(self, name: str, jobs: tuple[Any, ...], limit_s: float = 60.0) -> str:
        end_s = time.monotonic() + limit_s
        while not (self.folder / name).exists():
            told = "\n".join(job.texts() for job in jobs)
            assert time.monotonic() < end_s, f"{name} did not appear: {told}"
            time.sleep(0.02)
        return (self.folder / name).read_text()


def ends(*jobs: Any, limit_s: float = 60.0) -> list[Any]:
    return [job.end(limit_s=limit_s) for job in jobs]


def shown(job: Any, line: str, limit_s: float = 30.0) -> None:
    """Wait until it has said this."""
    end_s = time.monotonic() + limit_s
    while line not in job.texts():
        assert time.monotonic() < end_s, job.texts()
        time.sleep(0.02)
