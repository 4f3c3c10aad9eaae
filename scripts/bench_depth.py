#!/usr/bin/env python
"""How long a GPT's step takes to compile when it gets deeper: as it is, and by `scan_layers`.

    .venv/bin/python scripts/bench_depth.py [--layers 6,48] [--rounds 3]

Each is a process of its own with no cache, which trains for a few steps with AdamW; they take
turns. One JSON line for each form and depth: seconds of the step that compiles (median, least and
most), of the first three, and milliseconds of a step afterwards; then one for each form with the
ratio of the deepest to the shallowest.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))
FORMS = ("plain", "scan_layers")
STEPS = 6


def serve(form: str, layers: int) -> None:
    """Train, and print the seconds of each step."""
    import models
    import torch

    import torch_xla
    from torch_xdist.training.scan_layers import scan_layers

    torch.manual_seed(0)
    model = models.Gpt(vocabulary=512, length=64, d=128, heads=4, layers=layers).to("xla")
    if form == "scan_layers":
        blocks = list(model.blocks)
        model.blocks.forward = lambda x: scan_layers(blocks, x)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    words = torch.randint(512, (4, 65)).to("xla")
    torch_xla.sync(wait=True)
    taken = []
    for _ in range(STEPS):
        began_s = time.perf_counter()
        optimizer.zero_grad()
        logits = model(words[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), words[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        torch_xla.sync(wait=True)
        taken.append(time.perf_counter() - began_s)
    print(json.dumps(taken), flush=True)


def steps_of(form: str, layers: int) -> list[float]:
    """Seconds of each step, in a new process."""
    environ = {**os.environ, "XLA_PERSISTENT_CACHE_PATH": "", "PJRT_DEVICE": "CPU"}
    command = [sys.executable, __file__, "--serve", form, str(layers)]
    done = subprocess.run(command, capture_output=True, text=True, env=environ, timeout=1800)
    if done.returncode:
        raise SystemExit(f"{form} of {layers} layers ({done.returncode}):\n{done.stderr[-2000:]}")
    return [float(one) for one in json.loads(done.stdout.splitlines()[-1])]


def say(line: dict[str, Any]) -> None:
    """Print a line, its fractions to two digits."""
    rounded = {k: round(v, 2) if isinstance(v, float) else v for k, v in line.items()}
    print(json.dumps(rounded), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--layers", default="6,48")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.serve:
        serve(asked.serve[0], int(asked.serve[1]))
        return
    depths = [int(one) for one in asked.layers.split(",")]
    kinds = [(form, layers) for layers in depths for form in FORMS]
    runs: dict[tuple[str, int], list[list[float]]] = {kind: [] for kind in kinds}
    for _ in range(asked.rounds):
        for kind in kinds:
            runs[kind].append(steps_of(*kind))
    compiling = {kind: [max(steps) for steps in taken] for kind, taken in runs.items()}
    for form, layers in kinds:
        taken, slowest = runs[form, layers], compiling[form, layers]
        line: dict[str, Any] = {
            "form": form,
            "layers": layers,
            "compiling_s": statistics.median(slowest),
        }
        line |= {"least_s": min(slowest), "most_s": max(slowest)}
        line |= {"first_three_s": statistics.median(sum(steps[:3]) for steps in taken)}
        line |= {"step_ms": 1e3 * min(min(steps) for steps in taken)}
        say(line)
    for form in FORMS:
        pairs = zip(compiling[form, depths[0]], compiling[form, depths[-1]], strict=True)
        ratios = [deep / shallow for shallow, deep in pairs]
        line = {"form": form, "deepest_to_shallowest": statistics.median(ratios)}
        line |= {"from": min(ratios), "to": max(ratios)}
        say(line)


if __name__ == "__main__":
    main()
