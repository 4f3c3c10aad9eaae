"""Run the test suite in parts, two side by side, one per core; then those of the launcher.

`scripts/test` calls it inside .venv. A part is one pytest process with some folders or files of
tests/; a lane takes the next part as soon as it is through with one. Each part writes its own log
under runs/tests/, every line is shown as it comes with its part's name, and the last line adds the
counts of all. Paths among the arguments make it one plain pytest run.
"""

import re
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
LOGS = ROOT / "runs" / "tests"
COUNT = re.compile(r"(\d+) (passed|failed|errors?|skipped|xfailed|xpassed|deselected)\b")
NOTHING_COLLECTED = 5
SUMMARY = "= short test summary info ="
# Who sees no more than the end of the output shall see why.
LINES_OF_A_FAILURE = 25
# What pytest is told for each of our own options; tests/conftest.py knows which tests are faults.
SELECTED = {"--all": [], "--faults": ["-m", "not long or fault", "--faults-must-run"]}

# The longest first, but for what no part names: that is longer still, and called "rest".
PARTS = {
    "ops": ("tests/xdist/ops",),
    "core": ("tests/xdist/core",),
    "ranks": ("tests/xdist/ranks",),
    "sweep": ("tests/xdist/test_op_sweep.py",),
    "scripts": ("tests/scripts", "tests/test_snippets.py"),
    "training": ("tests/xdist/training",),
    "saving": tuple(f"tests/xdist/{name}" for name in ("checkpoint", "sharded_checkpoint")),
    "spmd": ("tests/xdist/spmd", "tests/xdist/export"),
    "kernels": ("tests/xdist/kernels", "tests/xdist/replay"),
}
# Jobs over several hosts, and others that have several of their own.
OVER_HOSTS = "tests/launcher/pods"
WITH_THEM = tuple(
    f"tests/launcher/test_{name}.py"
    for name in ("on_nodes", "on_ray", "return_of_nodes", "spawn_on_ray")
)


class Phase(NamedTuple):
    """Parts by their names, with the paths of each, and how many run at a time."""

    lanes: int
    parts: dict[str, list[str]]


def main(arguments: list[str]) -> int:
    options = next((SELECTED[a] for a in arguments if a in SELECTED), ["-m", "not long"])
    chosen = [a for a in arguments if a not in SELECTED]
    started = time.monotonic()
    done: list[Part] = []
    for phase in phases(chosen):
        done += run(phase, options + chosen)
    return report(done, time.monotonic() - started)


def phases(chosen: Sequence[str]) -> list[Phase]:
    """What runs one after another.

    The launcher's tests measure how soon a job ends, so nothing that computes runs beside them;
    they wait for half of their time, and three have room for each other. A path named by the user
    makes one part without any.
    """
    if any((ROOT / a.partition("::")[0]).exists() for a in chosen if not a.startswith("-")):
        return [Phase(1, {"tests": []})]
    named = _existing(PARTS)
    elsewhere = ["tests/launcher", *(path for paths in named.values() for path in paths)]
    rest = ["tests", *(f"--ignore={path}" for path in elsewhere)]
    return [Phase(2, {"rest": rest, **named}), Phase(3, launcher_parts())]


def launcher_parts() -> dict[str, list[str]]:
    """Jobs over hosts, what runs other jobs, and the folders of the launcher, in shares of each.

    Three lanes end at about the same time where what they still take is small.
    """
    inside = ROOT / "tests" / "launcher"
    folders = [
        f"tests/launcher/{folder.name}"
        for folder in sorted(inside.glob("*/"))
        if folder.name not in ("__pycache__", Path(OVER_HOSTS).name)
    ]
    over_hosts = [
        f"{OVER_HOSTS}/{path.name}" for path in sorted((ROOT / OVER_HOSTS).glob("test_*.py"))
    ]
    jobs = [f"tests/launcher/{path.name}" for path in sorted(inside.glob("test_*.py"))]
    jobs = [path for path in jobs if path not in WITH_THEM]
    parts = {
        "clusters": WITH_THEM,
        **_shares("pods", over_hosts, 3),
        **_shares("jobs", jobs, 4),
        **_shares("launcher", folders, 2),
    }
    return _existing(parts)


def _shares(name: str, paths: Sequence[str], count: int) -> dict[str, Sequence[str]]:
    """Every `count`-th path in each, called "pods-1", "pods-2"."""
    return {f"{name}-{first + 1}": paths[first::count] for first in range(count)}


def _existing(parts: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Without the paths that are not there, and the parts that have none: those would run all."""
    there = {
        name: [path for path in paths if (ROOT / path).exists()] for name, paths in parts.items()
    }
    return {name: paths for name, paths in there.items() if paths}


def run(phase: Phase, options: Sequence[str]) -> list["Part"]:
    """All parts, in as many lanes as the phase has."""
    waiting, done = deque(phase.parts.items()), []

    def lane() -> None:
        while waiting:
            try:
                name, paths = waiting.popleft()
            except IndexError:  # another lane was quicker
                return
            part = Part(name, [*options, *paths])
            part.finish()
            done.append(part)

    lanes = [threading.Thread(target=lane) for _ in range(phase.lanes)]
    try:
        for thread in lanes:
            thread.start()
        for thread in lanes:
            thread.join()
    except KeyboardInterrupt:
        # Those that run have got it, too.
        waiting.clear()
        raise
    return done


class Part:
    """One pytest process, its log file, and the thread that shows its lines."""

    def __init__(self, name: str, arguments: list[str]) -> None:
        self.name = name
        self.log = LOGS / f"{name}.log"
        self.log.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "pytest", *arguments]
        print(f"[{name}] {' '.join(command[1:])}", flush=True)
        self._process = subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self._last = ""
        self._started_s = time.monotonic()

    def finish(self) -> None:
        """Show its lines until it has ended."""
        assert self._process.stdout is not None
        with self.log.open("w") as log:
            for line in self._process.stdout:
                log.write(line)
                log.flush()
                print(f"[{self.name}] {line}", end="", flush=True)
                if COUNT.search(line):
                    self._last = line
        self.code = self._process.wait()
        self.took_s = time.monotonic() - self._started_s

    @property
    def failed(self) -> bool:
        return self.code not in (0, NOTHING_COLLECTED)

    def why(self) -> list[str]:
        """The end of what pytest says of failures, and the line it has for each of them."""
        lines = [line for line in self.log.read_text().splitlines() if line.strip()]
        named = [line for line in lines if line.startswith(("FAILED ", "ERROR "))]
        ends = [number for number, line in enumerate(lines) if SUMMARY in line]
        told = lines[: ends[-1]] if ends else lines
        return [*told[-LINES_OF_A_FAILURE:], *named]

    def counts(self) -> dict[str, int]:
        """What pytest's closing line says, as {"passed": 12, ...}."""
        return {word.rstrip("s"): int(n) for n, word in COUNT.findall(self._last)}


def report(parts: Sequence[Part], seconds: float) -> int:
    """Print how long each took, why which part failed, and the totals. Returns the exit code."""
    total: dict[str, int] = {"passed": 0, "failed": 0}
    for part in parts:
        for word, n in part.counts().items():
            total[word] = total.get(word, 0) + n
    print(", ".join(f"{part.name} {part.took_s:.0f} s" for part in parts))
    for part in parts:
        if part.failed:
            where = part.log.relative_to(ROOT)
            print(*part.why(), sep="\n")
            print(f"part {part.name} failed with exit code {part.code}; its log is {where}")
    counts = ", ".join(f"{n} {word}" for word, n in total.items())
    print(f"{counts} in {seconds:.0f}s", flush=True)
    return 1 if any(part.failed for part in parts) else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
