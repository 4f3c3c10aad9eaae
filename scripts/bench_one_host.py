#!/usr/bin/env python
"""What a job of one host costs with many ranks that only live and beat.

    scripts/bench_one_host.py [--ranks 64,256] [--seconds 20]

One real `xla-run -n RANKS` with a Python script that sleeps: real forks of the nursery, links,
beats and pipes. One JSON line for each number of ranks:

    start_s    from the start of `xla-run` until all ranks run the script
    core       share of one core of head and agent together, in steady state
    ranks_core the same of all ranks, which beat
    memory_mb  of head and agent; `rank_mb` is what a rank has for itself (unique set size, median)
    verdict_s  from the SIGKILL of one rank until the failure was told
    end_s      from there until `xla-run` had ended and no rank was left
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil

_SCRIPT = "import time\ntime.sleep(100000)\n"
_LIMIT_S = 120.0


def wait_for(is_so: Callable[[], Any], what: str) -> None:
    end_s = time.monotonic() + _LIMIT_S
    while not is_so():
        if time.monotonic() > end_s:
            raise SystemExit(f"{what}: not in {_LIMIT_S:g} s")
        time.sleep(0.02)


def events(folder: Path) -> dict[str, dict[str, Any]]:
    """The newest event of each kind that the head has filed."""
    lines = [
        line for path in folder.glob("*/events.jsonl") for line in path.read_text().split("\n")
    ]
    return {event["event"]: event for line in lines if line.strip() and (event := json.loads(line))}


def used_s(processes: Sequence[psutil.Process]) -> float:
    return sum(sum(process.cpu_times()[:2]) for process in processes)


def measured(ranks: int, seconds: float, folder: Path) -> dict[str, Any]:
    """One job, from its start to its end."""
    (script := folder / "sleeps.py").write_text(_SCRIPT)
    words = [sys.executable, "-m", "torch_xdist.launcher", "-n", str(ranks), "--tee", "none"]
    words += ["--log-dir", str(folder / "logs"), sys.executable, str(script)]
    began_s, began = time.monotonic(), time.time()
    with open(folder / "out", "wb") as out:
        head = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env={**os.environ}
        )
    try:
        wait_for(lambda: "arrived" in events(folder / "logs"), "arrived")
        start_s = events(folder / "logs")["arrived"]["time"] - began
        pids = set(events(folder / "logs")["arrived"]["pids"].values())
        tree = [psutil.Process(head.pid), *psutil.Process(head.pid).children(recursive=True)]
        of_ranks = [process for process in tree if process.pid in pids]
        others = [process for process in tree if process.pid not in pids]
        before, since_s = (used_s(others), used_s(of_ranks)), time.monotonic()
        time.sleep(seconds)
        took_s = time.monotonic() - since_s
        core, ranks_core = (
            (used_s(some) - earlier) / took_s
            for some, earlier in zip((others, of_ranks), before, strict=True)
        )
        memory = sum(process.memory_info().rss for process in others)
        own = statistics.median(process.memory_full_info().uss for process in of_ranks[:16])
        killed = time.time()
        of_ranks[ranks // 2].send_signal(signal.SIGKILL)
        code = head.wait(_LIMIT_S)
        ended = time.time()
        told = events(folder / "logs")
    finally:
        head.kill()
    assert not any(process.is_running() for process in of_ranks), "ranks are left"
    return {
        "ranks": ranks,
        "start_s": round(start_s, 2),
        "core": round(core, 3),
        "ranks_core": round(ranks_core, 3),
        "memory_mb": round(memory / 1e6),
        "rank_mb": round(own / 1e6, 1),
        "verdict_s": round(min(e["time"] for n, e in told.items() if n == "failure") - killed, 2),
        "end_s": round(ended - killed, 2),
        "code": code,
        "took_s": round(time.monotonic() - began_s, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ranks", default="64,256")
    parser.add_argument("--seconds", type=float, default=20.0, help="of steady state")
    asked = parser.parse_args()
    for ranks in map(int, asked.ranks.split(",")):
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(measured(ranks, asked.seconds, Path(folder))), flush=True)


if __name__ == "__main__":
    main()
