#!/usr/bin/env python
"""The host's time for a training step in two trees, by turns.

    .venv/bin/python scripts/bench_clock.py FOLDER [--turns N]

FOLDER is another checkout, such as one made by `git worktree add`. The GPT of bench_steps.py, too
small to keep the device busy, trains in three processes on one core: this tree, FOLDER, and FOLDER
again, which shows what the machine itself adds. At each turn each of them makes five steps; counted
is the processor time of the main thread in the last four. Prints one JSON line per form of AdamW:
the medians of the ratios turn by turn, with their quartiles. About six minutes. Times on a shared
machine move by a tenth; scripts/bench_instructions.py counts instead.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FORMS = {"default": None, "foreach=False": False}
STEPS = 4


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="another checkout")
    parser.add_argument("--turns", type=int, default=250)
    parser.add_argument("--layers", type=int, default=6, help="of the GPT (6)")
    parser.add_argument("--as-worker", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.as_worker:
        work(chosen.layers)
        return
    other = chosen.folder.resolve()
    if not (other / "scripts" / "bench_steps.py").exists():
        parser.error(f"{other} has no scripts/bench_steps.py: name a checkout of this repository")
    workers = [start(tree, chosen.layers) for tree in (ROOT, other, other)]
    try:
        for worker in workers:
            ask(worker, "")
        turns = [one_turn(workers, number) for number in range(chosen.turns)]
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    for place, form in enumerate(FORMS):
        times = [[microseconds[place] for microseconds in turn] for turn in turns]
        figures = {"what": f"host, AdamW {form}", "turns": len(turns)}
        figures |= {"this / other": spread([this / that for this, that, _ in times])}
        figures |= {"other / other": spread([again / that for _, that, again in times])}
        print(json.dumps(figures), flush=True)


def start(tree: Path, layers: int) -> subprocess.Popen:
    paths = os.pathsep.join([str(tree / "src"), str(tree / "scripts")])
    command = [sys.executable, "-P", "-W", "ignore", __file__, str(tree), "--as-worker"]
    return subprocess.Popen(
        [*command, "--layers", str(layers)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": paths},
    )


def one_turn(workers: list[subprocess.Popen], number: int) -> list[list[float]]:
    """The microseconds of a step in each worker, by form; every second turn goes backwards."""
    order = range(len(workers)) if number % 2 else reversed(range(len(workers)))
    found = {place: json.loads(ask(workers[place], "go")) for place in order}
    return [found[place] for place in range(len(workers))]


def ask(worker: subprocess.Popen, order: str) -> str:
    with contextlib.suppress(BrokenPipeError):
        worker.stdin.write(f"{order}\n")
        worker.stdin.flush()
    line = worker.stdout.readline()
    if not line:
        raise SystemExit(f"bench_clock: a worker ended with code {worker.wait()}")
    return line


def spread(ratios: list[float]) -> dict[str, float]:
    low, middle, high = statistics.quantiles(ratios)
    return {"median": round(middle, 3), "quartiles": [round(low, 3), round(high, 3)]}


def work(layers: int) -> None:
    """Answer each line of stdin with the times of a turn; the first when all is compiled."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    import torch
    from bench_steps import device_step  # of the tree on PYTHONPATH

    import torch_xla.core.xla_model as xm

    torch.set_num_threads(1)
    forms = [device_step(layers, 32, 4, 2, 16, foreach=foreach) for foreach in FORMS.values()]
    for step in forms:
        for _ in range(6):
            step()
    xm.wait_device_ops()
    for _ in sys.stdin:
        times = []
        for step in forms:
            step()
            started = time.thread_time()
            for _ in range(STEPS):
                step()
            times.append((time.thread_time() - started) / STEPS * 1e6)
            xm.wait_device_ops()
        print(json.dumps(times), flush=True)


if __name__ == "__main__":
    main()
