#!/usr/bin/env python
"""How much host memory a compiled program holds: what this process grows by, a shape after another.

    .venv/bin/python scripts/bench_program_memory.py [--programs N]

Each program has three operators. Prints one JSON line: MB and memory maps per program.
"""

import argparse
import json

import torch
from bench_resident import resident_mb

import torch_xla
from torch_xdist.core.programs.program_cache import used_maps


def compile_one(rows: int) -> None:
    """One program of three operators for this many rows."""
    kept = (torch.ones(rows, 3).to("xla") * 2 + 1).sin()
    torch_xla.sync()
    del kept


def main() -> None:
    """Warm up, compile, and print what that took."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--programs", type=int, default=300, help="how many are compiled (300)")
    count = parser.parse_args().programs
    for rows in range(1, 60):
        compile_one(rows)
    before_mb, maps = resident_mb(), used_maps()
    for rows in range(1000, 1000 + count):
        compile_one(rows)
    per_program = (resident_mb() - before_mb) / count
    found = {"MB per program": round(per_program, 3), "maps": (used_maps() - maps) / count}
    print(json.dumps({"what": "a compiled program of three operators", **found}))


if __name__ == "__main__":
    main()
