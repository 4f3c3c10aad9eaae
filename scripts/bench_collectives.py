"""Time all-reduces between processes of this host: ours inside a program, beside torch's gloo.

    scripts/bench_collectives.py [--ranks 2,4] [--mb 0.01,1,100] [--repeat 10]

One JSON line per size and number of ranks: milliseconds (best and median of the repeats, which
alternate between the two, so that a busy machine slows both) and bytes per second of the best.
"""

import argparse
import json
import multiprocessing
import os
import socket
import statistics
import time
import uuid
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import torch
import torch.distributed as dist

from torch_xdist.collectives import inside
from torch_xdist.collectives.shared_memory import transport as shared_memory


def main() -> None:
    """Read the options and time each combination."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ranks", default="2,4")
    parser.add_argument("--mb", default="0.01,1,25,100")
    parser.add_argument("--repeat", type=int, default=10)
    options = parser.parse_args()
    # Both sides start as the launcher starts ranks (`placement.library_environ`).
    os.environ.setdefault("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")
    sizes = [float(size) for size in options.mb.split(",")]
    for ranks in map(int, options.ranks.split(",")):
        _run(ranks, sizes, options.repeat)


def _run(ranks: int, sizes: list[float], repeat: int) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    job = uuid.uuid4().hex
    processes = [
        context.Process(target=_rank, args=(rank, ranks, job, port, sizes, repeat))
        for rank in range(ranks)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()


def _rank(rank: int, ranks: int, job: str, port: int, sizes: list[float], repeat: int) -> None:
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    end = shared_memory.join(rank, ranks, job)

    def program(launch: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        with inside.program("host", ranks, launch) as traced:
            reduced = inside.all_reduce([x], "sum")[0]
            return reduced, traced.token

    reduce = jax.jit(program, donate_argnums=1)
    for megabytes in sizes:
        count = max(int(megabytes * 1e6 / 4), 1)
        state = {"ours": jnp.zeros(count, jnp.float32), "gloo": torch.zeros(count)}

        def ours(state: dict[str, Any] = state) -> None:
            # As the device launches a step.
            with end.launch("") as launch:
                state["ours"], launch.result = reduce(launch.operand(), state["ours"])
            jax.block_until_ready(state["ours"])

        def gloo(state: dict[str, Any] = state) -> None:
            dist.all_reduce(state["gloo"])

        times = _alternate({"ours": ours, "gloo": gloo}, repeat)
        if rank == 0:
            print(json.dumps(_line(ranks, megabytes, times)), flush=True)
    dist.destroy_process_group()


def _alternate(calls: dict[str, Callable[[], None]], repeat: int) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(repeat + 2):
        for name, call in calls.items():
            dist.barrier()
            start_s = time.perf_counter()
            call()
            if turn >= 2:
                times[name].append(time.perf_counter() - start_s)
    return times


def _line(ranks: int, megabytes: float, times: dict[str, list[float]]) -> dict[str, Any]:
    line: dict[str, Any] = {"ranks": ranks, "mb": megabytes}
    for name, seconds in times.items():
        line[f"{name}_best_ms"] = round(min(seconds) * 1e3, 3)
        line[f"{name}_median_ms"] = round(statistics.median(seconds) * 1e3, 3)
        line[f"{name}_mb_per_s"] = round(megabytes / min(seconds))
    line["ours_to_gloo"] = round(line["ours_median_ms"] / line["gloo_median_ms"], 2)
    return line


if __name__ == "__main__":
    main()
