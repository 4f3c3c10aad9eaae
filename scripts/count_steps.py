#!/usr/bin/env python
"""What a training step of the reference models costs in numbers that no clock moves.

    .venv/bin/python scripts/count_steps.py [MODEL ...] [--write | --check] [--where N]

For each model of tests/models.py, trained for a few steps, one JSON line: how many programs were
compiled; then, of a step in the steady state, how many rows it records, how many Python calls and
bytecodes of ours that takes on the main thread, and how many HLO instructions XLA made of it for
the CPU. `--check` compares with tests/scripts/step_counts.json, and ends with 1 where a number is
more than 5 % above; `--write` puts what was found there. Bytecodes differ between releases of
Python, and instructions between those of jaxlib: the file names both, and with others `--check`
ends with 3.
"""

import argparse
import dataclasses
import functools
import gc
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch
from jaxlib.version import __version__ as jaxlib_version

ROOT = Path(__file__).resolve().parent.parent
# Each model is new: a program for it is no news.
os.environ["XDIST_EXPLAIN_RECOMPILES"] = "0"
# Of the compiled programs.
os.environ["XDIST_COMPUTE_ONCE"] = "0"
sys.path.insert(0, str(ROOT / "tests"))

import models  # noqa: E402

import torch_xdist.core.torch_side.registration  # noqa: E402, F401
from torch_xdist import metrics  # noqa: E402
from torch_xdist.core.devices import steps  # noqa: E402
from torch_xdist.core.programs import program  # noqa: E402
from torch_xdist.core.run import cuts  # noqa: E402

WRITTEN = ROOT / "tests" / "scripts" / "step_counts.json"
FOLDERS = tuple(f"{ROOT / name}/" for name in ("xdist", "collectives", "loaders", "torch_xla"))
WARM_STEPS = 5
ONE_BY_ONE = functools.partial(torch.optim.AdamW, foreach=False)
TRAININGS = {
    **models.TRAININGS,
    # Each operator of the optimizer is a row.
    "gpt, foreach=False": dataclasses.replace(models.TRAININGS["gpt"], optimizer=ONE_BY_ONE),
}
# More than this share above what is written is told.
MARGIN = 0.05
ADVICE = "make it cheaper, or say why it must be so and run scripts/count_steps.py --write"
# An instruction of HLO: %name = type operation(...).
INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?[\w.-]+ = ", re.MULTILINE)


class Count:
    """How many calls and bytecodes of this project's code a function takes on this thread."""

    def __init__(self) -> None:
        self.calls = 0
        self.where: Counter[CodeType] = Counter()
        self._is_ours: dict[CodeType, bool] = {}

    def of(self, run: Callable[[], Any]) -> None:
        # Where the collector runs depends on what came before.
        gc.collect()
        gc.disable()
        sys.settrace(self._called)
        try:
            run()
        finally:
            sys.settrace(None)
            gc.enable()

    def _called(self, frame: FrameType, _: str, __: Any) -> Any:
        code = frame.f_code
        is_ours = self._is_ours.get(code)
        if is_ours is None:
            place = str(Path(code.co_filename).resolve())
            is_ours = self._is_ours[code] = place.startswith(FOLDERS)
        if not is_ours:
            return None
        self.calls += 1
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        return self._stepped

    def _stepped(self, frame: FrameType, event: str, _: Any) -> Any:
        if event == "opcode":
            self.where[frame.f_code] += 1
        return self._stepped

    def shown(self, most: int) -> str:
        """The functions that took most bytecodes, a line each."""
        return "\n".join(
            f"{taken:>9,}  {code.co_qualname}  {code.co_filename}:{code.co_firstlineno}"
            for code, taken in self.where.most_common(most)
        )


def step_of(training: models.Training) -> Callable[[], None]:
    """One step of a model on the device, on the same batch each time."""
    torch.manual_seed(0)
    model = training.model().to("xla")
    optimizer = training.optimizer([*model.parameters()])
    inputs, target = (part.to("xla") for part in training.batch())

    def step() -> None:
        optimizer.zero_grad()
        training.loss(model(inputs), target).backward()
        optimizer.step()
        steps.sync()

    return step


def counts_of(name: str, most: int = 0) -> dict[str, int]:
    """The figures of one model; the functions that took `most` bytecodes go to stderr."""
    program.PROGRAMS.clear()
    before = metrics.counter_value("UncachedCompile") or 0
    step = step_of(TRAININGS[name])
    for _ in range(WARM_STEPS):
        step()
    compiled = (metrics.counter_value("UncachedCompile") or 0) - before
    count = Count()
    count.of(step)
    if most:
        print(count.shown(most), file=sys.stderr)
    of_step = max(program.PROGRAMS.values(), key=lambda p: p.used)
    return {
        "programs": compiled,
        "rows": cuts.LOG[-1].rows,
        "calls": count.calls,
        "bytecodes": count.where.total(),
        "instructions": len(INSTRUCTION.findall(of_step.executable.text())),
    }


def versions() -> dict[str, str]:
    """What the figures depend on."""
    python = ".".join(map(str, sys.version_info[:2]))
    return {
        "python": python,
        "torch": torch.__version__.partition("+")[0],
        "jaxlib": jaxlib_version,
    }


def grown(found: dict[str, int], written: dict[str, int]) -> list[str]:
    """What is above what is written by more than the margin, in words."""
    return [
        f"{what} {found[what]:,}, {found[what] / before - 1:+.1%} of {before:,}"
        for what, before in written.items()
        if found[what] > before * (1 + MARGIN)
    ]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", metavar="MODEL", help="; ".join(TRAININGS))
    end = parser.add_mutually_exclusive_group()
    end.add_argument("--check", action="store_true", help="end with 1 where a number has grown")
    end.add_argument("--write", action="store_true", help="put what was found into the file")
    parser.add_argument(
        "--where", type=int, default=0, metavar="N", help="show the N functions that take most"
    )
    chosen = parser.parse_args()
    if unknown := set(chosen.models) - set(TRAININGS):
        parser.error(f"no such model: {', '.join(sorted(unknown))}")
    kept = json.loads(WRITTEN.read_text()) if WRITTEN.exists() else {"of": versions(), "steps": {}}
    if chosen.check and kept["of"] != versions():
        parser.exit(3, f"count_steps: {WRITTEN.name} is of {kept['of']}, this is {versions()}\n")
    told = []
    for name in chosen.models or kept["steps"] or TRAININGS:
        found = counts_of(name, chosen.where)
        print(json.dumps({"model": name, **found}), flush=True)
        if chosen.check:
            told += [f"{name}: {words}" for words in grown(found, kept["steps"][name])]
        kept["steps"][name] = found
    if chosen.write:
        WRITTEN.write_text(json.dumps({**kept, "of": versions()}, indent=1) + "\n")
    if told:
        print("\n".join(["a step costs more than is written:", *told, ADVICE]), file=sys.stderr)
    return bool(told)


if __name__ == "__main__":
    sys.exit(main())
