#!/usr/bin/env python
"""What it costs to read the loss in each step, on a CPU.

    .venv/bin/python scripts/bench_reading.py [--models perceptron,mnist,...] [--rounds 15]

Trains each model in two processes by turns: with losses that are read before their step is over,
and without (`XDIST_EARLY_RESULTS=0`). Loops that read the loss in each step, and loops that only
wait at their end. One JSON line each: milliseconds of a step without and with (medians), and the
median of with / without. `NPROC=1` leaves XLA one thread: on two cores Python has one of its own
then, as it nearly has on many.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from typing import Any

# The processes' work for a model: steps of one turn.
STEPS = {"perceptron": 40, "mnist": 20, "lstm": 6, "resnet18": 3, "gpt": 3}


def perceptron() -> Any:
    """A training of some 2 ms a step, as `bench_busy.py` has it."""
    import torch
    from bench_models import Training
    from torch import nn

    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 256))

    def sgd(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, 0.01, momentum=0.9)

    def batch() -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randn(512, 256), torch.randn(512, 256)

    return Training(model, batch, nn.functional.mse_loss, sgd)


def serve(name: str) -> None:
    """Train for so many steps as stdin asks, reading or not; a line of milliseconds answers."""
    import torch
    from bench_models import MODELS

    import torch_xla
    import torch_xla.core.xla_model as xm

    training = perceptron() if name == "perceptron" else MODELS[name]
    torch.manual_seed(0)
    model = training.model().to("xla")
    optimizer = training.optimizer([*model.parameters()])
    inputs, target = (part.to("xla") for part in training.batch())

    def run(count: int, reads: bool) -> float:
        xm.wait_device_ops()
        started = time.perf_counter()
        for _ in range(count):
            optimizer.zero_grad()
            loss = training.loss(model(inputs), target)
            loss.backward()
            optimizer.step()
            torch_xla.sync()
            if reads:
                loss.item()
        xm.wait_device_ops()
        return 1e3 * (time.perf_counter() - started) / count

    run(5, reads=True)
    print("ready", flush=True)
    for line in sys.stdin:
        print(run(STEPS[name], reads=line.strip() == "reads"), flush=True)


def started(name: str, early: str) -> "subprocess.Popen[str]":
    """A process that trains a model, ready."""
    process = subprocess.Popen(
        [sys.executable, __file__, "--serve", name],
        env={**os.environ, "XDIST_EARLY_RESULTS": early, "PJRT_DEVICE": "CPU"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    if process.stdout.readline() != "ready\n":
        raise SystemExit(f"bench_reading: {name} ended with code {process.wait()}")
    return process


def turn(process: "subprocess.Popen[str]", way: str) -> float:
    """Milliseconds of a step."""
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(f"{way}\n")
    process.stdin.flush()
    return float(process.stdout.readline())


def compare(name: str, rounds: int) -> None:
    """Print what a model's loops take."""
    pair = [started(name, early) for early in "01"]
    try:
        for way in ("reads", "reads nothing"):
            found: list[list[float]] = [[], []]
            for number in range(rounds):
                # Who is first takes turns as well.
                for side in ((0, 1), (1, 0))[number % 2]:
                    found[side].append(turn(pair[side], way))
            ratio = statistics.median(after / before for before, after in zip(*found))
            before, after = (round(statistics.median(times), 3) for times in found)
            line = {"bench": "reading", "model": name, "way": way, "without_ms": before}
            print(json.dumps({**line, "with_ms": after, "ratio": round(ratio, 3)}), flush=True)
    finally:
        for process in pair:
            process.kill()
            process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--models", default=",".join(STEPS), help=f"of {', '.join(STEPS)}")
    parser.add_argument("--rounds", type=int, default=15, help="turns of each process")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments.serve)
        return
    names = arguments.models.split(",")
    if unknown := {*names} - {*STEPS}:
        parser.error(f"--models: no model {', '.join(sorted(unknown))}; known: {', '.join(STEPS)}")
    for name in names:
        compare(name, arguments.rounds)


if __name__ == "__main__":
    main()
