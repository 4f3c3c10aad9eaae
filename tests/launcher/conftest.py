"""Runs a job from outside: a real `xla-run` or script, its time, its output, and its survivors."""

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import ray_cluster
import slurm_cluster
from node_jobs import Nodes
from processes import kill_marked
from ray_cluster import Cluster

from torch_xdist.system import process_tree

# Under nohup it is ignored, and a job that begins so ignores it too.
signal.signal(signal.SIGHUP, signal.SIG_DFL)

XLA_RUN = (sys.executable, "-m", "torch_xdist.launcher")


@dataclass
class Ended:
    """A job that is over. `after_fault_s`: from the moment a rank called `fault()` to the end."""

    code: int
    out: str
    err: str
    seconds: float
    after_fault_s: float | None
    folder: Path

    def log(self, rank: int) -> str:
        """What the log file of a rank holds, of its newest attempt."""
        found = sorted(self.folder.glob(f"logs/*/attempt-*/rank-{rank}.log"))
        return found[-1].read_text(errors="replace") if found else ""


class Running:
    """A job that was started and can be disturbed."""

    def __init__(
        self, command: list[str], folder: Path, environ: dict[str, str], stdin: bytes = b""
    ) -> None:
        self.folder = folder
        self.mark = f"XLA_RUN_TEST={uuid.uuid4().hex}"
        name, value = self.mark.split("=")
        environ = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("XLA_RUN", "PJRT"))},
            "XLA_RUN_STATE_DIR": str(folder),
            "XLA_RUN_PREIMPORT": "",
            "PYTHONPATH": str(folder),
            "FOLDER": str(folder),
            name: value,
            **environ,
        }
        self.started_s = time.monotonic()
        (folder / "in").write_bytes(stdin)
        names = (("in", "rb"), ("out", "wb"), ("err", "wb"))
        with contextlib.ExitStack() as files:
            given, out, err = (files.enter_context(open(folder / n, mode)) for n, mode in names)
            self.process = subprocess.Popen(
                command,
                cwd=folder,
                env=environ,
                stdout=out,
                stderr=err,
                stdin=given,
                start_new_session=True,
            )

    def wait_for(self, name: str, limit_s: float = 60.0) -> str:
        """Wait for a file that a rank writes; its text."""
        end_s = time.monotonic() + limit_s
        path = self.folder / name
        while not path.exists() or not path.read_text():
            assert time.monotonic() < end_s, f"{name} did not appear: {self.texts()}"
            assert self.process.poll() is None, f"ended before {name}: {self.texts()}"
            time.sleep(0.02)
        return path.read_text()

    def ask(self, *words: str) -> str:
        """What `xla-run ps`, `stack`, ... say of this job."""
        done = subprocess.run(
            [*XLA_RUN, *words],
            env={**os.environ, "XLA_RUN_STATE_DIR": str(self.folder)},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def texts(self) -> str:
        return "\n".join(
            (self.folder / name).read_text(errors="replace") for name in ("out", "err")
        )

    def alive(self) -> set[int]:
        """Every process of the job but the one we started."""
        return process_tree.marked(self.mark) - {self.process.pid}

    def end(self, limit_s: float = 60.0) -> Ended:
        """Wait for the end; nothing of the job may be alive then."""
        try:
            code = self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {limit_s} s: {self.texts()}") from None
        ended_s = time.monotonic()
        assert self.gone(1.0), f"survivors: {self.alive()}"
        fault = self.folder / "fault"
        after_s = ended_s - float(fault.read_text()) if fault.exists() else None
        out, err = ((self.folder / name).read_text(errors="replace") for name in ("out", "err"))
        return Ended(code, out, err, ended_s - self.started_s, after_s, self.folder)

    def gone(self, limit_s: float) -> bool:
        """Whether nothing of the job is left within this time."""
        end_s = time.monotonic() + limit_s
        while self.alive():
            if time.monotonic() >= end_s:
                return False
            time.sleep(0.02)
        return True

    def kill_all(self) -> None:
        kill_marked(self.mark)
        self.process.wait()


_PRELUDE = """
import ctypes, os, signal, subprocess, sys, threading, time
RANK = int(os.environ.get("RANK", "0"))
FOLDER = os.environ["FOLDER"]
def say(name, text="x"):
    with open(os.path.join(FOLDER, name + ".tmp" + str(RANK)), "w") as file:
        file.write(str(text))
    os.replace(os.path.join(FOLDER, name + ".tmp" + str(RANK)), os.path.join(FOLDER, name))
def fault():
    say("fault", time.monotonic())
def meet(place="here"):
    say("%s-%d" % (place, RANK))
    ranks = range(int(os.environ["WORLD_SIZE"]))
    while not all(os.path.exists(os.path.join(FOLDER, "%s-%d" % (place, r))) for r in ranks):
        time.sleep(0.01)
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Running]]:
    """`start(body, "--nprocs", "2")`: run a script (with `fault`, `meet`, `say`) as ranks.

    Without options the script itself is run; `before` is a command to run all of it under,
    `arguments` are those of the script. As a `module` it is named to -m, as a `program` it is
    executed and not run in a fork of the nursery. Without `dash` no -- stands before the command.
    """
    running: list[Running] = []

    def begin(
        body: str,
        *options: str,
        env: dict[str, str] | None = None,
        before: tuple[str, ...] = (),
        arguments: Sequence[str] = (),
        dash: bool = True,
        module: bool = False,
        program: bool = False,
        stdin: bytes = b"",
    ) -> Running:
        folder = tmp_path / f"job{len(running)}"
        folder.mkdir(mode=0o700)
        script = folder / "train.py"
        script.write_text(_PRELUDE + textwrap.dedent(body))
        # With an option of the interpreter a script is a program: it does not run in a fork.
        words = [sys.executable, *(["-X", "utf8"] if program else []), str(script)]
        words = ["train"] if module else words
        command = [*XLA_RUN, *options, *(["--"] if dash and not module else []), *words]
        if not options:
            command = [sys.executable, str(script)]
        job = Running([*before, *command, *arguments], folder, env or {}, stdin)
        running.append(job)
        return job

    yield begin
    for job in running:
        job.kill_all()


@pytest.fixture
def run(start: Callable[..., Running]) -> Callable[..., Ended]:
    """`run(body, "--nprocs", "2")`: the same, to its end."""

    def whole(body: str, *options: str, env: dict[str, str] | None = None) -> Ended:
        return start(body, *options, env=env).end()

    return whole


@pytest.fixture(scope="session")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A Slurm of two nodes, n1 and n2; the environment in which srun finds it."""
    if why := slurm_cluster.missing():
        pytest.skip(why)
    with slurm_cluster.running(tmp_path_factory.mktemp("slurm")) as environ:
        yield environ


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A Ray cluster of two nodes of 4 CPUs each."""
    if why := ray_cluster.missing():
        pytest.skip(why)
    with ray_cluster.running() as found:
        yield found


@pytest.fixture
def nodes(start: Callable[..., Running], tmp_path: Path) -> Nodes:
    """Nodes of one job on this machine."""
    return Nodes(start, tmp_path / "shared")
