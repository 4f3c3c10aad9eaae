#!/usr/bin/env python
"""How busy the device is in loops of short steps: Python must not keep it waiting.

    .venv/bin/python scripts/bench_busy.py [--device-ms 2] [--steps 200] [--rounds 5]

Trains a perceptron whose batch is chosen so that the program of a step takes about `--device-ms`
alone: from its launch on an idle device until its results are there. Then loops of `--steps` steps,
by turns: `ahead`, which only waits at the end; `item`, which reads the loss in each step; `pure`,
the same as `ahead` by `torch_xla.compile(pure=True)`. One JSON line each: milliseconds of a step
(median of the rounds) and `busy`, the program's time alone / that. `item` has `item_to_ahead` too,
and `apart_to_ahead`: what that were if reading took no time at all, so that nothing but the
recording of a step (`record_ms`, until its launch on an idle device) and its program took turns.
On a CPU the device's threads and Python share the cores.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import torch_xla
from torch_xdist.core.devices import steps
from torch_xdist.core.programs import program

_WIDTH = 256


def made(batch: int) -> Callable[[], torch.Tensor]:
    """A function that records one step of training and returns its loss."""
    torch.manual_seed(0)
    layers = [nn.Linear(_WIDTH, _WIDTH), nn.GELU(), nn.Linear(_WIDTH, _WIDTH)]
    model = nn.Sequential(*layers).to("xla")
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    inputs, wanted = (torch.randn(batch, _WIDTH).to("xla") for _ in range(2))

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), wanted)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def alone_ms(step: Callable[[], Any], rounds: int) -> tuple[float, float]:
    """A step on an idle device: its program from the launch until it is done, and all before."""
    taken: list[tuple[float, float]] = []
    run = program.run

    def timed(*arguments: Any) -> None:
        launched_s = time.perf_counter()
        run(*arguments)
        for result in arguments[2][0]:
            result.block_until_ready()
        taken.append((time.perf_counter() - launched_s, launched_s - began_s))

    program.run = timed
    try:
        for _ in range(rounds + 5):
            steps.wait_device_ops()
            began_s = time.perf_counter()
            step()
            torch_xla.sync()
    finally:
        program.run = run
    device_s, record_s = (statistics.median(times) for times in zip(*taken[5:]))
    return 1e3 * device_s, 1e3 * record_s


def batch_for(device_ms: float) -> tuple[int, Callable[[], torch.Tensor]]:
    """A batch whose step takes about so long on the device, and its step."""
    batch = 64
    while True:
        step = made(batch)
        if batch >= 1 << 16 or alone_ms(step, 20)[0] >= 0.8 * device_ms:
            return batch, step
        batch *= 2


def loop_ms(step: Callable[[], Any], count: int, after: Callable[[Any], None]) -> float:
    """Milliseconds of a step in a loop of so many."""
    steps.wait_device_ops()
    began_s = time.perf_counter()
    for _ in range(count):
        after(step())
    steps.wait_device_ops()
    return 1e3 * (time.perf_counter() - began_s) / count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device-ms", type=float, default=2.0)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    batch, step = batch_for(asked.device_ms)
    replayed = torch_xla.compile(step, pure=True)
    ways: dict[str, tuple[Callable[[], Any], Callable[[Any], None]]] = {
        "ahead": (step, lambda loss: torch_xla.sync()),
        "item": (step, lambda loss: (torch_xla.sync(), loss.item())[0]),
        "pure": (replayed, lambda loss: None),
    }
    alone: list[tuple[float, float]] = []
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(asked.rounds + 1):
        alone.append(alone_ms(step, 20))
        for name, (run, after) in ways.items():
            found = loop_ms(run, asked.steps, after)
            if turn:  # The first one compiles.
                taken[name].append(found)
    device_ms, record_ms = (statistics.median(times) for times in zip(*alone))
    medians = {name: statistics.median(times) for name, times in taken.items()}
    for name, median in medians.items():
        line = {"bench": "busy", "way": name, "batch": batch, "device_ms": round(device_ms, 3)}
        line |= {"step_ms": round(median, 3), "busy": round(device_ms / median, 3)}
        if name == "item":
            line |= {"record_ms": round(record_ms, 3)}
            line["item_to_ahead"] = round(median / medians["ahead"], 3)
            line["apart_to_ahead"] = round((record_ms + device_ms) / medians["ahead"], 3)
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
