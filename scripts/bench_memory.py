#!/usr/bin/env python
"""The memory of a training step at its peak: beside hand-written JAX, and with what saves some.

    scripts/bench_memory.py [--only gpt2,resnet50] [--resident]

One JSON line for each case. `ours_mb` and `beside_mb` are what XLA says of the compiled programs
(arguments, results and what lies between, less what shares memory); their `ratio` moves with no
clock. The models are those of `tests/large_models.py` in sizes for a CPU, in bfloat16 under AdamW,
as `scripts/jax_models.py` writes them by hand with all state donated. The ways to save memory train
a GPT of 8 layers, beside the same without. `--resident` adds the most that a process has in three
steps after those that compile, less what it had after its imports: `ours_resident_mb`,
`beside_resident_mb`; the C library keeps some of what compiling needed.
"""

import argparse
import gc
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "scripts")]

STEPS = 3
WAYS = {
    "activation checkpoints / none": ("checkpointed", "plain"),
    "8 turns of gradient accumulation / one batch": ("accumulated", "plain"),
    "scan_layers / a list of layers": ("scanned", "plain"),
}


def sizes() -> dict[str, Any]:
    """Models with a twin by hand in JAX."""
    from large_models import Bert, Measured, ResNet50, VitB, gpt2

    return {
        "gpt2": Measured(lambda: gpt2(512, 128, 256, 8, 6), 8, (128,), 512, 8),
        "resnet50": Measured(lambda: ResNet50(32, 100, (2, 2, 2, 2)), 16, (3, 64, 64), 100),
        "vit_b": Measured(lambda: VitB(128, 256, 8, 6, 100), 8, (3, 128, 128), 100, 8),
        "bert_large": Measured(lambda: Bert(512, 128, 256, 8, 6), 8, (128,), 512, 8),
    }


def peak_bytes(stats: Any) -> int:
    held = stats.argument_size_in_bytes + stats.output_size_in_bytes - stats.alias_size_in_bytes
    return int(held + stats.temp_size_in_bytes)


def largest_program() -> int:
    """The peak of the step: of the programs of this process that needs most."""
    from torch_xdist.core.programs import program

    found = [peak_bytes(stats) for one in program.PROGRAMS.values() if (stats := one.memory())]
    return max(found)


def ours(name: str) -> Callable[[], int]:
    """A model with its twin; what runs its steps gives the bytes of the program."""
    import torch

    import torch_xla

    measured = sizes()[name]
    torch.manual_seed(0)
    model = measured.model().to("xla")
    inputs, target = (tensor.to("xla") for tensor in measured.batch())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    torch_xla.sync()

    def run() -> int:
        for _ in range(STEPS):
            optimizer.zero_grad()
            with torch.autocast("xla", torch.bfloat16):
                logits = model(inputs)
            loss = measured.loss(logits, target)
            loss.backward()
            optimizer.step()
            torch_xla.sync()
        loss.item()
        return largest_program()

    return run


def by_hand(name: str) -> Callable[[], int]:
    import jax_models

    measured = sizes()[name]
    update, (state, x, wanted) = jax_models.program_of(name, measured, measured.make())
    stats = update.lower(state, x, wanted).compile().memory_analysis()

    def run() -> int:
        nonlocal state
        for _ in range(STEPS):
            state, loss = update(state, x, wanted)
        float(loss)
        return peak_bytes(stats)

    return run


def way(kind: str) -> Callable[[], int]:
    """A GPT of 8 layers, trained in one of the ways of `WAYS`."""
    import torch
    from large_models import gpt2

    import torch_xla
    from torch_xdist.training.gradient_accumulation import gradient_accumulation
    from torch_xdist.training.scan_layers import scan_layers
    from torch_xla.utils.checkpoint import checkpoint

    torch.manual_seed(0)
    model = gpt2(512, 128, 256, 8, 8).to("xla")
    words = torch.randint(512, (16, 129)).to("xla")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    blocks = model.blocks
    if kind == "checkpointed":
        for block in blocks:
            inner = block.forward
            block.forward = lambda x, inner=inner: checkpoint(inner, x, use_reentrant=True)
    if kind == "scanned":
        layers = list(blocks)
        blocks.forward = lambda x: scan_layers(layers, x)
    torch_xla.sync()

    def loss_of(rows: Any) -> Any:
        logits = model(rows[:, :-1])
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())

    def run() -> int:
        for _ in range(STEPS):
            optimizer.zero_grad()
            if kind == "accumulated":
                (loss, *_) = (gradient_accumulation(loss_of, [words.view(8, 2, -1)], model),)
            else:
                loss = loss_of(words)
                loss.backward()
            optimizer.step()
            torch_xla.sync()
        return largest_program()

    return run


def serve(side: str, name: str) -> None:
    """One process: the bytes of the program, and what the process needed beyond its imports."""
    import jax
    import torch  # noqa: F401

    import torch_xla  # noqa: F401

    jax.numpy.zeros(1).block_until_ready()
    before = resident_bytes("VmRSS")
    run = {"ours": ours, "by_hand": by_hand, "way": way}[side](name)
    run()
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the most begins anew
    made = run()
    print(json.dumps([made, resident_bytes("VmHWM") - before]), flush=True)


def resident_bytes(which: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(which):
            return int(line.split()[1]) * 1024
    raise SystemExit(f"/proc/self/status has no {which}")


def measured(side: str, name: str) -> tuple[int, int]:
    command = [sys.executable, __file__, "--serve", side, name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    if done.returncode:
        raise SystemExit(f"{side} {name} failed ({done.returncode}):\n{done.stderr[-2000:]}")
    program, resident = json.loads(done.stdout.splitlines()[-1])
    return program, resident


def tell(case: str, one: tuple[int, int], other: tuple[int, int], resident: bool) -> None:
    line: dict[str, Any] = {"case": case, "ours_mb": round(one[0] / 1e6, 1)}
    line |= {"beside_mb": round(other[0] / 1e6, 1), "ratio": round(one[0] / other[0], 3)}
    if resident:
        line |= {"ours_resident_mb": round(one[1] / 1e6)}
        line |= {"beside_resident_mb": round(other[1] / 1e6)}
    print(json.dumps(line), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="gpt2,resnet50,vit_b,bert_large,ways")
    parser.add_argument("--resident", action="store_true")
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.serve:
        serve(*asked.serve)
        return
    chosen = asked.only.split(",")
    for name in chosen:
        if name != "ways":
            sides = measured("ours", name), measured("by_hand", name)
            tell(f"{name} / JAX by hand", *sides, asked.resident)
    if "ways" in chosen:
        plain = measured("way", "plain")
        for case, (kind, _) in WAYS.items():
            tell(case, measured("way", kind), plain, asked.resident)


if __name__ == "__main__":
    main()
