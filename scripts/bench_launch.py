"""Startup: from `python script.py` to the first finished all-reduce of 4 ranks, beside torchrun.

Each way is run `--rounds` times, by turns, and the median is told, with all figures. The script
imports torch and the device at its top, as users' scripts do, and every rank notes when its sum has
arrived. `--phases` adds where the time of the first two ways went, from the job's events.

    python scripts/bench_launch.py --rounds 5 --phases
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

# Every rank notes the time in a file of its own: lines on one pipe may run into each other.
_STAMP = """
import os, time
def stamp(name=""):
    with open(os.path.join(os.environ["STAMPS"], name or str(os.getpid())), "w") as file:
        file.write(str(time.time()))
"""

_SPAWN = """
import torch
import torch_xla.core.xla_model as xm
import torch_xla.distributed.xla_multiprocessing as xmp

def work(rank):
    total = xm.all_reduce("sum", torch.ones(4, device=xm.xla_device())).cpu()
    assert total.tolist() == [4.0] * 4
    stamp()

if __name__ == "__main__":
    stamp("called")
    xmp.spawn(work, nprocs=4)
"""

# The function imports the device itself, so that the parent stays light.
_SPAWN_LIGHT = """
from torch_xdist.launcher.ways_in.spawn import spawn

def work(rank):
    import torch
    import torch_xla.core.xla_model as xm

    total = xm.all_reduce("sum", torch.ones(4, device=xm.xla_device())).cpu()
    assert total.tolist() == [4.0] * 4
    stamp()

if __name__ == "__main__":
    stamp("called")
    spawn(work, nprocs=4)
"""

_GLOO = """
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.ones(4)
dist.all_reduce(total)
assert total.tolist() == [4.0] * 4
stamp()
# gloo's threads abort a process that ends with its group.
dist.destroy_process_group()
"""


def ways(folder: Path) -> dict[str, list[str]]:
    """The commands to compare, by name; their scripts are written to `folder`."""
    for name, text in (("spawn", _SPAWN), ("light", _SPAWN_LIGHT), ("gloo", _GLOO)):
        (folder / f"{name}.py").write_text(_STAMP + text)
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"]
    xla_run = ["-m", "torch_xdist.launcher", "--nprocs", "4", "--", sys.executable]
    return {
        "xmp.spawn, script imports torch and torch_xla": [str(folder / "spawn.py")],
        "spawn, only the ranks import them": [str(folder / "light.py")],
        "xla-run, the same script": [*xla_run, str(folder / "spawn.py")],
        "torchrun, the same script": [*torchrun, str(folder / "spawn.py")],
        "torchrun, torch and gloo alone": [*torchrun, str(folder / "gloo.py")],
    }


# What has happened, in order: how the stamps and the launcher's events name it.
PHASES = {
    "called": "imported by the script",
    "attempt": "controller up",
    "start": "nursery ready, ranks forked",
    "arrived": "ranks running",
    "sum": "first sum",
    "end": "job over",
}


def times_of_one_run(command: list[str]) -> dict[str, float]:
    """Seconds from the start of the command to each phase that it has; "sum" is the last rank's."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.time()
        environ = {**os.environ, "STAMPS": folder, "XLA_RUN_LOG_DIR": f"{folder}/logs"}
        done = subprocess.run(
            [sys.executable, *command], capture_output=True, text=True, timeout=300, env=environ
        )
        stamps = {p.name: float(p.read_text()) for p in Path(folder).iterdir() if p.is_file()}
        sums = [at for name, at in stamps.items() if name.isdigit()]
        if done.returncode != 0 or len(sums) != 4:
            raise SystemExit(f"{' '.join(command)} failed ({done.returncode}):\n{done.stderr}")
        events = [
            json.loads(line)
            for path in Path(folder).glob("logs/*/events.jsonl")
            for line in path.read_text().splitlines()
        ]
    times = {event["event"]: event["time"] for event in events}
    times.update(stamps, sum=max(sums))
    return {name: times[name] - began for name in PHASES if name in times}


def told(name: str, runs: list[dict[str, float]], phases: bool) -> str:
    """One line of JSON, and where asked for one line per phase: medians."""
    sums = [round(run["sum"], 2) for run in runs]
    line = {"way": name, "median_s": round(statistics.median(sums), 2), "seconds": sums}
    lines = [json.dumps(line)]
    if phases and "called" in runs[0]:
        medians = {name: statistics.median(run[name] for run in runs) for name in runs[0]}
        before = 0.0
        for phase, at in sorted(medians.items(), key=lambda item: item[1]):
            lines.append(f"          {at:5.2f} s (+{at - before:.2f})  {PHASES[phase]}")
            before = at
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="ways whose name contains this")
    parser.add_argument("--phases", action="store_true")
    options = parser.parse_args()
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory() as folder:
        chosen = {name: c for name, c in ways(Path(folder)).items() if options.only in name}
        runs: dict[str, list[dict[str, float]]] = {name: [] for name in chosen}
        for _ in range(options.rounds):
            for name, command in chosen.items():
                runs[name].append(times_of_one_run(command))
        for name in chosen:
            print(told(name, runs[name], options.phases), flush=True)


if __name__ == "__main__":
    main()
