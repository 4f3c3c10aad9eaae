#!/usr/bin/env python
"""The memory of a chip that a training step needs, by the TPU compiler, which needs no TPU.

    scripts/bench_tpu_memory.py [--only maxima,means,depthwise,resnet50] [--topology v5e:2x2]

One JSON line for each case: `mb` is what XLA says of the compiled program (arguments, results and
what lies between, less what shares memory), in bfloat16 autocast at 64 images of 224 x 224.
`resnet50` is that of `tests/large_models.py` under AdamW, beside the same by hand in JAX
(`beside_mb`); compiling the two takes some minutes. The others are small nets around one operator.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "scripts")]
# There is none to ask for what this machine is.
os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
IMAGES = 64
LIMIT_S = 1800.0


def small(kind: str) -> Any:
    """A convolution, the operator in question, and a head."""
    from torch import nn

    def normed(*parts: Any, channels: int) -> list[Any]:
        return [*parts, nn.BatchNorm2d(channels), nn.ReLU()]

    bodies: dict[str, Callable[[], list[Any]]] = {
        "maxima": lambda: [
            *normed(nn.Conv2d(3, 64, 7, 2, 3, bias=False), channels=64),
            nn.MaxPool2d(3, 2, 1),
        ],
        "means": lambda: [
            *normed(nn.Conv2d(3, 64, 3, 2, 1, bias=False), channels=64),
            *(nn.AvgPool2d(3, 2, 1), nn.Conv2d(64, 64, 3, 1, 1), nn.ReLU()),
        ],
        "depthwise": lambda: [
            *normed(nn.Conv2d(3, 96, 3, 2, 1, bias=False), channels=96),
            *normed(nn.Conv2d(96, 96, 3, 2, 1, groups=96, bias=False), channels=96),
            *normed(nn.Conv2d(96, 96, 5, 1, 2, groups=96, bias=False), channels=96),
        ],
    }
    channels = 96 if kind == "depthwise" else 64
    return nn.Sequential(
        *bodies[kind](), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10)
    )


def ours(kind: str, topology: Any) -> dict[str, Any]:
    """A step as it is recorded here."""
    import torch
    from large_models import PUBLISHED
    from torch.nn import functional as F

    import torch_xdist.core.torch_side.registration  # noqa: F401
    import torch_xla
    from torch_xdist.ahead import step
    from torch_xdist.ahead.compiler import Compiler
    from torch_xdist.ahead.topology import devices
    from torch_xdist.core.devices import aim, steps

    torch.manual_seed(0)
    model = PUBLISHED[kind].make()[0] if kind in PUBLISHED else small(kind)
    images, target = torch.randn(IMAGES, 3, 224, 224), torch.zeros(IMAGES, dtype=torch.long)
    here = torch_xla.device()
    with Compiler(limit_s=LIMIT_S) as compiler, aim.at(devices(topology)):
        model, images, target = model.to(here), images.to(here), target.to(here)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        for leaf in model.parameters():
            moments = {name: torch.zeros_like(leaf) for name in ("exp_avg", "exp_avg_sq")}
            optimizer.state[leaf] = {"step": torch.tensor(1.0), **moments}
        steps.sync()
        optimizer.zero_grad()
        with torch.autocast("xla", torch.bfloat16):
            logits = model(images)
        loss = F.cross_entropy(logits.float(), target)
        loss.backward()
        optimizer.step()
        loss = loss.detach()
        del logits
        optimizer.zero_grad()
        found = step.pending(topology, compiler)
        step.forget()
    if not found.is_ok:
        raise SystemExit(f"{kind}: {found.words}")
    return {"mb": megabytes(found.bytes), "tflop": round(found.flops / 1e12, 3)}


def beside(kind: str, topology: Any) -> dict[str, Any]:
    """The same by hand in JAX."""
    import jax
    import jax_models
    from jax.sharding import SingleDeviceSharding
    from large_models import PUBLISHED

    from torch_xdist.ahead.module_compiler import compile_module
    from torch_xdist.ahead.topology import devices
    from torch_xdist.ahead.verdict import facts_of
    from torch_xdist.core.programs.jax_internals import module_bytes, options_in

    measured = PUBLISHED[kind]
    model, inputs, target = measured.make()
    made = (model, inputs[:IMAGES], target[:IMAGES])
    update, arguments = jax_models.program_of(kind, measured, made)
    there = devices(topology)
    place = SingleDeviceSharding(there[0])
    shapes = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place), arguments
    )
    lowered = update.trace(*shapes).lower(lowering_platforms=("tpu",))
    facts = facts_of(compile_module(module_bytes(lowered), there, [0], options_in(lowered)))
    return {"beside_mb": megabytes(facts["bytes"])}


def megabytes(found: Any) -> int:
    held = found["arguments"] + found["results"] - found["aliased"]
    return round((held + found["temporaries"]) / 1e6)


def main() -> None:
    """Compile and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="maxima,means,depthwise,resnet50")
    parser.add_argument("--topology", default="v5e:2x2")
    told = parser.parse_args()
    from torch_xdist.ahead.topology import Topology

    topology = Topology(told.topology)
    for kind in told.only.split(","):
        began_s = time.monotonic()
        found = ours(kind, topology)
        if kind == "resnet50":
            found |= beside(kind, topology)
            found["ratio"] = round(found["mb"] / found["beside_mb"], 3)
        took = {"seconds": round(time.monotonic() - began_s)}
        print(json.dumps({"what": kind, "topology": told.topology, **found, **took}), flush=True)


if __name__ == "__main__":
    main()
