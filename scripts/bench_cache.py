#!/usr/bin/env python
"""How long a training takes to its third step with no program cached, and with all of them.

    .venv/bin/python scripts/bench_cache.py [--models mnist,resnet18,gpt] [--rounds N]

Each turn is two processes on one new folder: the first finds it empty, the second finds what the
first left. A process reports seconds from the first use of the device, with its imports done, to
the loss of the third step, how much of that is no compiling (modules that torch imports at its
first tensor, running three steps), and how many programs it compiled and found. Prints one JSON
line per model, medians over the rounds.
"""

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()
STEPS = 3


def main() -> None:
    """Measure the models named, by turns."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default="mnist,resnet18,gpt")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each model (3)")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.child:
        print(json.dumps(measure(flags.child)))
        return
    for name in flags.models.split(","):
        turns = [turn(name) for _ in range(flags.rounds)]
        print(json.dumps({"model": name, **summary(turns)}), flush=True)


def turn(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """A process with an empty cache, and one after it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "programs")
        cold = in_process(name, path)
        return cold, in_process(name, path)


def in_process(name: str, folder: Path) -> dict[str, Any]:
    """What a process of its own measures with this cache."""
    env = {**os.environ, "PJRT_DEVICE": "CPU", "XLA_PERSISTENT_CACHE_PATH": str(folder)}
    command = [sys.executable, str(HERE), "--child", name]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def measure(name: str) -> dict[str, Any]:
    """Three steps of a model in this process."""
    import torch

    import torch_xla
    from torch_xla.debug import metrics

    step = training(name)
    began_s = time.perf_counter()
    device = torch_xla.device()
    run = step(device)
    ready_s = time.perf_counter()
    for _ in range(STEPS):
        loss = run()
        torch_xla.sync()
    loss.item()
    ended_s = time.perf_counter()
    for _ in range(STEPS):
        loss = run()
        torch_xla.sync()
    loss.item()
    again_s = time.perf_counter() - ended_s
    compile_ns = (metrics.metric_data("CompileTime") or (0, 0))[1]
    del torch
    return {
        "s": ended_s - began_s,
        "of them before the first step": ready_s - began_s,
        "of them what three later steps take": again_s,
        "compile or load": compile_ns / 1e9,
        "compiled": metrics.counter_value("PersistentCacheMiss") or 0,
        "found": metrics.counter_value("PersistentCacheHit") or 0,
    }


def training(name: str) -> Any:
    """What takes a device and gives a step on it: the models of tests/models.py, and a GPT."""
    import torch

    models = loaded("models", HERE.parents[1] / "tests" / "models.py")
    torch.manual_seed(0)
    if name == "mnist":
        model, batch = models.MnistNet(), (torch.randn(64, 1, 28, 28), torch.randint(10, (64,)))
    elif name == "resnet18":
        model, batch = models.ResNet18(), (torch.randn(32, 3, 32, 32), torch.randint(10, (32,)))
    elif name == "gpt":
        model = loaded("bench_steps", HERE.with_name("bench_steps.py")).GPT(6, 256, 8, 128)
        ids = torch.randint(512, (8, 128))
        batch = (ids, ids)
    else:
        raise SystemExit(f"bench_cache: no model {name!r}; use mnist, resnet18 or gpt")

    def on(device: Any) -> Any:
        model.to(device)
        optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
        inputs, targets = (part.to(device) for part in batch)

        def step() -> torch.Tensor:
            optimizer.zero_grad()
            logits = model(inputs).flatten(0, -2)
            loss = torch.nn.functional.cross_entropy(logits, targets.flatten())
            loss.backward()
            optimizer.step()
            return loss.detach()

        return step

    return on


def loaded(name: str, path: Path) -> Any:
    """A module of this checkout by its file."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def summary(turns: list[tuple[dict[str, Any], dict[str, Any]]]) -> dict[str, Any]:
    """Medians of both sides and of their ratio, with its least and most."""
    ratios = [warm["s"] / cold["s"] for cold, warm in turns]
    more = statistics.median(_more(warm) / _more(cold) for cold, warm in turns)
    sides: dict[str, Any] = {}
    for side, measured in zip(("cold", "warm"), zip(*turns)):
        names = measured[0]
        sides[side] = {n: round(statistics.median(m[n] for m in measured), 3) for n in names}
    spread = [round(min(ratios), 3), round(max(ratios), 3)]
    told = {"ratio": round(statistics.median(ratios), 3), "from, to": spread}
    return {**sides, **told, "ratio of what is more than those": round(more, 3)}


def _more(measured: dict[str, Any]) -> float:
    """Seconds that a process took beside imports and running its steps."""
    first, later = (measured[name] for name in measured if name.startswith("of them"))
    return measured["s"] - first - later


if __name__ == "__main__":
    main()
