"""Run the test suite: two pytest processes side by side, one per core, then four of the launcher's.

`scripts/test` calls it inside .venv. One lane takes most folders of tests/xdist, another all the
rest (the sweeps beside those folders too); then two take tests/launcher, and two its tests over
several hosts. Each writes its own log under runs/tests/, every line is shown as it comes with its
lane's name, and the last line adds the counts of all. Paths among the arguments make it one plain
pytest run.
"""

import re
import subprocess
import sys
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOGS = ROOT / "runs" / "tests"
COUNT = re.compile(r"(\d+) (passed|failed|errors?|skipped|xfailed|xpassed|deselected)\b")
NOTHING_COLLECTED = 5
# With every dtype and form it takes as long as the folders' tests together.
SWEEP = "tests/xdist/test_op_sweep.py"
# Folders that run with the rest, so that both lanes take about as long.
WITH_THE_REST = ("__pycache__", "dynamo", "kernels", "releases", "replay", "training")
# Jobs over several hosts, and others that have several of their own.
PODS = "tests/launcher/pods"
WITH_PODS = tuple(
    f"tests/launcher/test_{name}.py"
    for name in ("on_nodes", "on_ray", "return_of_nodes", "spawn_on_ray")
)
# What pytest is told for each of our own options; tests/conftest.py knows which tests are faults.
SELECTED = {"--all": [], "--faults": ["-m", "not long or fault", "--faults-must-run"]}


def main(arguments: list[str]) -> int:
    options = next((SELECTED[a] for a in arguments if a in SELECTED), ["-m", "not long"])
    chosen = [a for a in arguments if a not in SELECTED]
    started = time.monotonic()
    lanes: list[Lane] = []
    for side_by_side in lane_paths(chosen, whole_sweep="--all" in arguments):
        begun = [Lane(name, options + chosen + paths) for name, paths in side_by_side.items()]
        for lane in begun:
            lane.finish()
        lanes += begun
    return report(lanes, time.monotonic() - started)


def lane_paths(chosen: list[str], whole_sweep: bool = False) -> list[dict[str, list[str]]]:
    """The paths of each lane: lanes of one entry run side by side, entries one after another.

    The launcher's tests measure how soon a job ends, so nothing that computes runs beside them;
    they wait for most of their time, and four have room for each other. The sweep of operators
    goes where there is room for it. A path named by the user makes one lane without any.
    """
    if any((ROOT / a.partition("::")[0]).exists() for a in chosen if not a.startswith("-")):
        return [{"tests": []}]
    folders = sorted(
        f"tests/xdist/{folder.name}"
        for folder in (ROOT / "tests" / "xdist").iterdir()
        if folder.is_dir() and folder.name not in WITH_THE_REST
    )
    if whole_sweep:
        folders.append(SWEEP)
    others = ["tests", *(f"--ignore={path}" for path in ("tests/launcher", *folders))]
    return [{"xdist": folders, "others": others}, launcher_lanes()]


def launcher_lanes() -> dict[str, list[str]]:
    """What runs real jobs, the folders beside it, and two parts of what runs them over hosts."""
    inside = ROOT / "tests" / "launcher"
    folders = [
        f"tests/launcher/{folder.name}"
        for folder in sorted(inside.glob("*/"))
        if folder.name not in ("__pycache__", "pods")
    ]
    over_hosts = [f"{PODS}/{path.name}" for path in sorted((ROOT / PODS).glob("test_*.py"))]
    elsewhere = [f"--ignore={path}" for path in (*folders, PODS, *WITH_PODS)]
    lanes = {
        "launcher": ["tests/launcher", *elsewhere],
        "launcher-parts": folders,
        "pods": over_hosts[::2],
        "pods-more": [*over_hosts[1::2], *WITH_PODS],
    }
    # Without a path pytest would run everything.
    return {name: paths for name, paths in lanes.items() if paths}


class Lane:
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
        self._reader = threading.Thread(target=self._show)
        self._reader.start()

    def _show(self) -> None:
        assert self._process.stdout is not None
        with self.log.open("w") as log:
            for line in self._process.stdout:
                log.write(line)
                log.flush()
                print(f"[{self.name}] {line}", end="", flush=True)
                if COUNT.search(line):
                    self._last = line

    def finish(self) -> None:
        self.code = self._process.wait()
        self._reader.join()

    @property
    def failed(self) -> bool:
        return self.code not in (0, NOTHING_COLLECTED)

    def counts(self) -> dict[str, int]:
        """What pytest's closing line says, as {"passed": 12, ...}."""
        return {word.rstrip("s"): int(n) for n, word in COUNT.findall(self._last)}


def report(lanes: list[Lane], seconds: float) -> int:
    """Print the totals, and say which lane failed. Returns the exit code."""
    total: dict[str, int] = {"passed": 0, "failed": 0}
    for lane in lanes:
        for word, n in lane.counts().items():
            total[word] = total.get(word, 0) + n
    for lane in lanes:
        if lane.failed:
            where = lane.log.relative_to(ROOT)
            print(f"lane {lane.name} failed with exit code {lane.code}; its log is {where}")
    counts = ", ".join(f"{n} {word}" for word, n in total.items())
    print(f"{counts} in {seconds:.0f}s", flush=True)
    return 1 if any(lane.failed for lane in lanes) else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
