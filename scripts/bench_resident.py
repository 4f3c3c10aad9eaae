#!/usr/bin/env python
"""Whether resident memory stays flat: a training loop of thousands of steps, and one of ever new
shapes.

    .venv/bin/python scripts/bench_resident.py [--steps 5000] [--shapes 1000]

Both train a digits CNN with Adam and read the loss now and then, as a log does. `steps` has one
batch size; in `shapes` each step has a batch of a size that was never there, so each compiles,
with a table of programs of the default size and with one of 64. Each part runs in a process of
its own, and prints one JSON line: MB after a tenth of it, and after each further tenth.
"""

import argparse
import gc
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

_PAGE_MB = 4096 / 1e6
_TENTHS = 10
# A program that stays in memory is what is looked for, and not how soon it is found again.
_ALONE = {"XLA_PERSISTENT_CACHE_PATH": "", "XDIST_EXPLAIN_RECOMPILES": "0"}
_PARTS = {
    "steps": {},
    "shapes": {},
    "shapes, 64 programs": {"XLA_COMPILATION_CACHE_SIZE": "64"},
}


def resident_mb() -> float:
    """The resident memory of this process."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_MB


def train(sizes: Iterator[int]) -> Iterator[None]:
    """One step for each batch size."""
    import torch
    from torch import nn

    import torch_xla

    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(288, 32),
        nn.ReLU(),
        nn.Linear(32, 10),
    ).to("xla")
    optimizer = torch.optim.Adam(model.parameters())
    for step, size in enumerate(sizes):
        images, labels = torch.rand(size, 1, 8, 8).to("xla"), torch.randint(10, (size,)).to("xla")
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        torch_xla.sync()
        if step % 100 == 0:
            loss.item()
        yield


def measure(part: str, count: int) -> None:
    """Print the line of one part."""
    sizes = (64 for _ in range(count)) if part == "steps" else iter(range(1, count + 1))
    found = []
    for step, _ in enumerate(train(sizes), 1):
        if step % max(1, count // _TENTHS) == 0:
            found.append(round(resident_mb(), 1))
    grown = {"MB": found, "grown_mb": round(found[-1] - found[0], 1)}
    print(json.dumps({"what": part, "count": count, **grown}), flush=True)


def main() -> None:
    """Each part in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--steps", type=int, default=5000, help="of the first part (5000)")
    parser.add_argument("--shapes", type=int, default=1000, help="of the others (1000)")
    parser.add_argument("--part", choices=_PARTS, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.part:
        measure(asked.part, asked.steps if asked.part == "steps" else asked.shapes)
        return
    for part, environ in _PARTS.items():
        command = [sys.executable, __file__, "--part", part]
        command += ["--steps", str(asked.steps), "--shapes", str(asked.shapes)]
        subprocess.run(command, env={**os.environ, **_ALONE, **environ}, check=True)


if __name__ == "__main__":
    main()
