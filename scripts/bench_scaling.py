#!/usr/bin/env python
"""Weak scaling of training: a step on two ranks beside the same step on one, ours and torch's DDP.

    scripts/bench_scaling.py [--models digits,resnet18,gpt] [--rounds 5] [--seconds 1.0]

Each rank has one core and the same batch size. All worlds of a model (ours and DDP over gloo, one
and two ranks) live at once and are timed in turn, so that a busy machine slows all of them; the
others sleep meanwhile. One JSON line per side, with the median milliseconds of a step and the
efficiency: the time on one rank / the time on two, as the median of the rounds. `cpu` is the
processor time of a step, which other programs disturb less: the least of the rounds, of the rank
that took most. One line per model puts both efficiencies beside each other; ours is to be at least
DDP's.
"""

import argparse
import contextlib
import importlib.util
import json
import multiprocessing
import os
import socket
import statistics
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

# By its place: beside it are folders named like packages.
MODELS = Path(__file__).resolve().parents[1] / "tests" / "models.py"
SIDES = ("ours", "ddp")
_LIMIT_S = 300.0
End = Callable[[], Any]
# What a worker does for `count` steps; returns when they are done.
Run = Callable[[int], None]


class Times(NamedTuple):
    """Seconds by the clock, and of the processor."""

    wall_s: float
    cpu_s: float


def main() -> None:
    """Read the options and time each model."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])  # type: ignore[union-attr]
    parser.add_argument("--models", default="digits,resnet18,gpt")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each world in each round")
    options = parser.parse_args()
    # Both sides start as the launcher starts ranks (`placement.library_environ`).
    os.environ.setdefault("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")
    for name in options.models.split(","):
        bench(name, options.rounds, options.seconds)


def bench(name: str, rounds: int, seconds: float) -> None:
    """Time one model and print its lines."""
    worlds = {(side, ranks): World(side, ranks, name) for side in SIDES for ranks in (1, 2)}
    try:
        counts = {key: world.steps_in(seconds) for key, world in worlds.items()}
        times: dict[tuple[str, int], list[Times]] = {key: [] for key in worlds}
        for _ in range(rounds):
            for key, world in worlds.items():
                times[key].append(world.step(counts[key]))
    finally:
        for world in worlds.values():
            world.end()
    efficiency = {side: _say(name, side, times[side, 1], times[side, 2]) for side in SIDES}
    ratio = round(efficiency["ours"] / efficiency["ddp"], 3)
    print(json.dumps({"model": name, **efficiency, "ours_to_ddp": ratio}), flush=True)


def _say(name: str, side: str, one: list[Times], two: list[Times]) -> float:
    efficiency = round(statistics.median(a.wall_s / b.wall_s for a, b in zip(one, two)), 3)
    figures: dict[str, float] = {}
    for ranks, times in ((1, one), (2, two)):
        figures[f"ranks{ranks}_ms"] = round(statistics.median(t.wall_s for t in times) * 1e3, 2)
        figures[f"ranks{ranks}_cpu_ms"] = round(min(t.cpu_s for t in times) * 1e3, 2)
    line = {"model": name, "side": side, **figures, "efficiency": efficiency}
    print(json.dumps(line), flush=True)
    return efficiency


class World:
    """The processes of one side and size, each on a core of its own, waiting for orders."""

    def __init__(self, side: str, ranks: int, model: str) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self._pipes: list[Connection] = []
        self._processes = []
        for rank in range(ranks):
            ours, theirs = multiprocessing.Pipe()
            arguments = (theirs, side, rank, ranks, port, model)
            self._processes.append(_started_on_core(rank, arguments))
            theirs.close()  # so that a rank that dies ends the wait for it
            self._pipes.append(ours)

    def steps_in(self, seconds: float) -> int:
        """How many steps take this long, at least 2; compiles first."""
        self.step(3)
        return max(2, int(seconds / self.step(3).wall_s))

    def step(self, count: int) -> Times:
        """Of a step: the mean of `count`, on the slowest rank."""
        for pipe in self._pipes:
            pipe.send(count)
        found = [_answer(pipe) for pipe in self._pipes]
        return Times(max(wall for wall, _ in found) / count, max(cpu for _, cpu in found) / count)

    def end(self) -> None:
        """Let the processes end."""
        for pipe in self._pipes:
            with contextlib.suppress(BrokenPipeError):
                pipe.send(0)
        for process in self._processes:
            process.join(30)
            process.kill()


def _answer(pipe: Connection) -> tuple[float, float]:
    if not pipe.poll(_LIMIT_S):
        raise TimeoutError(f"a rank did not answer within {_LIMIT_S:.0f} s")
    return pipe.recv()


def _started_on_core(rank: int, arguments: tuple[Any, ...]) -> Any:
    """A process that has one core from its first instruction: thread pools look at that once."""
    cores = sorted(os.sched_getaffinity(0))
    process = multiprocessing.get_context("spawn").Process(target=_serve, args=arguments)
    os.sched_setaffinity(0, {cores[rank % len(cores)]})
    try:
        process.start()
    finally:
        os.sched_setaffinity(0, cores)
    return process


def _serve(pipe: Connection, side: str, rank: int, ranks: int, port: int, model: str) -> None:
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(ranks),
        LOCAL_WORLD_SIZE=str(ranks),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
    )
    run, end = {"ours": _ours, "ddp": _ddp}[side](rank, model)
    while count := pipe.recv():
        started_s, cpu_s = time.perf_counter(), time.process_time()
        run(count)
        pipe.send((time.perf_counter() - started_s, time.process_time() - cpu_s))
    end()


def _loaded_models() -> Any:
    spec = importlib.util.spec_from_file_location("models", MODELS)
    assert spec is not None and spec.loader is not None
    sys.modules["models"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _training(rank: int, name: str) -> tuple[Any, Any, Any, Any]:
    """(model, its inputs, targets, training) on the CPU; the model equal on every rank."""
    import torch

    torch.set_num_threads(1)
    models = _loaded_models()
    kind = models.TRAININGS[name]
    make = {
        "digits": lambda: models.DigitsNet(),
        "resnet18": lambda: models.ResNet18(64),
        "gpt": lambda: models.Gpt(vocabulary=512, length=128, d=256, heads=8, layers=4),
    }[name]
    torch.manual_seed(0)
    model = make()
    torch.manual_seed(rank)
    x, y = {
        "digits": lambda: (torch.randn(64, 1, 8, 8), torch.randint(10, (64,))),
        "resnet18": lambda: (torch.randn(16, 3, 64, 64), torch.randint(10, (16,))),
        "gpt": lambda: (torch.randint(512, (4, 128)), torch.randint(512, (4, 128))),
    }[name]()
    return model, x, y, kind


def _ours(rank: int, name: str) -> tuple[Run, End]:
    import torch_xla
    import torch_xla.core.xla_model as xm

    model, x, y, kind = _training(rank, name)
    model, x, y = model.to("xla"), x.to("xla"), y.to("xla")
    optimizer = kind.optimizer(list(model.parameters()))

    def run(count: int) -> None:
        for _ in range(count):
            optimizer.zero_grad()
            kind.loss(model(x), y).backward()
            xm.optimizer_step(optimizer)
            torch_xla.sync()
        xm.wait_device_ops()

    return run, lambda: None


def _ddp(rank: int, name: str) -> tuple[Run, End]:
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    model, x, y, kind = _training(rank, name)
    dist.init_process_group("gloo")
    model = DistributedDataParallel(model)
    optimizer = kind.optimizer(list(model.parameters()))

    def run(count: int) -> None:
        for _ in range(count):
            optimizer.zero_grad()
            kind.loss(model(x), y).backward()
            optimizer.step()

    return run, dist.destroy_process_group


if __name__ == "__main__":
    main()
