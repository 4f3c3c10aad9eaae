#!/usr/bin/env python
"""How many machine instructions the host spends on a training step: for comparing two trees.

    .venv/bin/python scripts/bench_instructions.py [--against FOLDER] [--layers N]

Times of the host's work move by a tenth with the machine's speed; counts do not, to about 0.3 %.
The GPT of bench_steps.py, too small to keep the device busy, runs under valgrind (which must be
installed); counted are the instructions of the main thread, garbage collection included. Prints
one JSON line per form of AdamW: its default, whose update is one row, and foreach=False. FOLDER is
another checkout, such as one made by `git worktree add`, and gives the ratio this / other. Two to
three minutes per tree and form.
"""

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parent.parent
STEPS = 12
FORMS = {"default": None, "foreach=False": False}
LOOK_S = 5.0


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--against", type=Path, metavar="FOLDER", help="another checkout")
    parser.add_argument("--layers", type=int, default=6, help="of the GPT (6)")
    parser.add_argument("--in-valgrind", choices=FORMS, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.in_valgrind:
        count_steps(chosen.layers, FORMS[chosen.in_valgrind])
    if not shutil.which("valgrind"):
        parser.exit(2, "bench_instructions: valgrind is not on PATH; install it (apt, dnf, brew)\n")
    for form in FORMS:
        here = instructions(ROOT, chosen.layers, form)
        figures: dict[str, Any] = {"what": f"host, AdamW {form}", "instructions per step": here}
        if chosen.against:
            other = instructions(chosen.against.resolve(), chosen.layers, form)
            figures |= {"other": other, "ratio": round(here / other, 4)}
        print(json.dumps(figures), flush=True)


def instructions(tree: Path, layers: int, form: str) -> int:
    """Of one step, by the code of this tree."""
    with tempfile.TemporaryDirectory() as folder:
        counts = Path(folder) / "counts"
        command = ["valgrind", "--tool=callgrind", "--instr-atstart=no", "--separate-threads=yes"]
        command += [f"--callgrind-out-file={counts}", sys.executable, "-P", "-W", "ignore"]
        command += [__file__, "--layers", str(layers), "--in-valgrind", form]
        paths = os.pathsep.join([str(tree / "src"), str(tree / "scripts")])
        process = subprocess.Popen(
            command,
            # Names hash alike in both trees.
            env={**os.environ, "PYTHONPATH": paths, "PYTHONHASHSEED": "0"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        errors = to_the_end(process)
        dump = counts.with_name("counts.1-01")
        found = dump.exists() and re.search(r"^totals: (\d+)", dump.read_text(), re.MULTILINE)
        if not found:
            raise SystemExit(f"bench_instructions: {tree}: nothing was counted\n{errors}")
        return int(found[1]) // STEPS


def to_the_end(process: "subprocess.Popen[str]") -> str:
    """What it says on stderr; an order that comes at a bad moment leaves callgrind stopped."""
    while True:
        try:
            return process.communicate(timeout=LOOK_S)[1]
        except subprocess.TimeoutExpired:
            if psutil.Process(process.pid).status() == psutil.STATUS_STOPPED:
                process.send_signal(signal.SIGCONT)


def count_steps(layers: int, foreach: bool | None) -> None:
    """Train, and let callgrind count some of the steps. Ends the process."""
    import torch
    from bench_steps import device_step  # of the tree on PYTHONPATH

    import torch_xla.core.xla_model as xm

    torch.set_num_threads(1)
    step = device_step(layers, 32, 4, 2, 16, foreach=foreach)
    run(step, 6)
    xm.wait_device_ops()
    tell("--instr=on")
    # callgrind translates the code once more.
    run(step, 3)
    xm.wait_device_ops()
    tell("--zero")
    run(step, STEPS)
    xm.wait_device_ops()
    tell("--dump")
    os._exit(0)


def run(step: Callable[[], Any], count: int) -> None:
    for _ in range(count):
        step()


def tell(order: str) -> None:
    """Give callgrind, in which this process runs, an order."""
    subprocess.run(["callgrind_control", order, str(os.getpid())], check=True, capture_output=True)


if __name__ == "__main__":
    main()
