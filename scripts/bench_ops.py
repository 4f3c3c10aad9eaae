#!/usr/bin/env python
"""How fast single operators are, forward and backward, against eager torch on the same CPU.

    .venv/bin/python scripts/bench_ops.py [--match REGEX] [--rounds 7] [--clock wall|cpu]

Times eager torch and the device turn by turn in one process, takes the best of each, and prints one
JSON line per case: milliseconds of both, and their ratio (below 1: the device is faster). A turn is
several runs, of which the first does not count: the other's threads still spin. A case slower than
5 times eager says why in `note`; without one, the script ends with status 1. `launch_ms`, the
device's time for doing nothing, is in every time of it.
`--clock cpu` counts processor time of all threads, which also holds on a machine busy with other
work; set OMP_NUM_THREADS=1 with it, since eager torch's threads spin while they wait.
"""

import argparse
import json
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

import torch_xla  # noqa: F401
from torch_xdist.core.devices import steps

LIMIT = 5.0
RUNS = 4
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
Clock = Callable[[], float]
Run = Callable[..., torch.Tensor]


@dataclass(frozen=True, slots=True)
class Case:
    """A function and the inputs it is timed on; floating-point inputs get gradients."""

    name: str
    run: Run
    inputs: Callable[[], tuple[torch.Tensor, ...]]
    note: str = ""


def randint(high: int, *shape: int) -> torch.Tensor:
    return torch.randint(high, shape)


def index_put(x: torch.Tensor, i: torch.Tensor, j: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return x.index_put((i, j), v, accumulate=True)


def attention(causal: bool) -> Run:
    return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=causal)


def batch_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return F.batch_norm(x, None, None, weight, bias, training=True)


def three(*shape: int) -> Callable[[], tuple[torch.Tensor, ...]]:
    return lambda: (torch.randn(shape), torch.randn(shape), torch.randn(shape))


def one(*shape: int) -> Callable[[], tuple[torch.Tensor, ...]]:
    return lambda: (torch.randn(shape),)


def pair(first: tuple[int, ...], second: tuple[int, ...]) -> Callable[[], tuple[torch.Tensor, ...]]:
    return lambda: (torch.randn(first), torch.randn(second))


def conv(
    name: str, run: Callable[..., torch.Tensor], x: tuple[int, ...], w: tuple[int, ...], **how: int
) -> Case:
    """A convolution of an input [n, c, ...] with a weight, both given by their shapes."""
    return Case(name, lambda x, w: run(x, w, **how), pair(x, w))


INDEXING = [
    Case(
        "embedding",
        lambda w, i: F.embedding(i, w),
        lambda: (torch.randn(30000, 256), randint(30000, 8, 512)),
    ),
    Case(
        "embedding_bag.mean",
        lambda w, i: F.embedding_bag(i, w, mode="mean"),
        lambda: (torch.randn(10000, 64), randint(10000, 512, 20)),
    ),
    Case(
        "gather",
        lambda x, i: x.gather(1, i),
        lambda: (torch.randn(2048, 512), randint(512, 2048, 256)),
    ),
    Case(
        "scatter_add",
        lambda x, i, s: x.scatter_add(1, i, s),
        lambda: (torch.randn(1024, 512), randint(512, 1024, 256), torch.randn(1024, 256)),
    ),
    Case(
        "index_put.accumulate",
        index_put,
        lambda: (
            torch.randn(1024, 512),
            randint(1024, 100000),
            randint(512, 100000),
            torch.randn(100000),
        ),
    ),
    Case(
        "index_add",
        lambda x, i, s: x.index_add(1, i, s),
        lambda: (torch.randn(1024, 512), randint(512, 256), torch.randn(1024, 256)),
    ),
    Case(
        "index_select",
        lambda x, i: x.index_select(0, i),
        lambda: (torch.randn(4096, 256), randint(4096, 4096)),
    ),
]
ORDER = [
    Case("sort", lambda x: x.sort(-1).values, one(512, 1024)),
    Case("argsort.long", lambda x: x.sort().values, one(200000)),
    Case("topk", lambda x: x.topk(10).values, one(512, 4096)),
    Case("cumsum", lambda x: x.cumsum(1), one(1024, 1024)),
    Case("cumsum.long", lambda x: x.cumsum(0), one(1000000)),
    Case(
        "cumprod",
        lambda x: x.cumprod(1),
        one(512, 512),
        "torch's formula of its gradient takes three more running sums and products",
    ),
    Case("cummax", lambda x: x.cummax(1).values, one(512, 1024)),
    Case("cummin", lambda x: x.cummin(1).values, one(512, 1024)),
    Case("logcumsumexp", lambda x: x.logcumsumexp(1), one(512, 1024)),
]
ATTENTION = [
    Case("attention", attention(False), three(4, 8, 256, 64)),
    Case("attention.causal", attention(True), three(4, 8, 256, 64)),
]
POOLING = [
    Case("max_pool2d", lambda x: F.max_pool2d(x, 2), one(16, 32, 56, 56)),
    Case("max_pool2d.overlapping", lambda x: F.max_pool2d(x, 3, 2, 1), one(8, 32, 56, 56)),
    Case("avg_pool2d", lambda x: F.avg_pool2d(x, 3, 2, 1), one(16, 32, 56, 56)),
    Case("adaptive_avg_pool2d", lambda x: F.adaptive_avg_pool2d(x, 7), one(16, 64, 28, 28)),
    Case(
        "adaptive_max_pool2d",
        lambda x: F.adaptive_max_pool2d(x, 7),
        one(8, 64, 28, 28),
        "alone, both directions take 1.4 ms; in one program XLA finds each window's maximum again "
        "for every element of the gradient",
    ),
    Case("interpolate.nearest", lambda x: F.interpolate(x, scale_factor=2), one(8, 32, 32, 32)),
    Case(
        "interpolate.bilinear",
        lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
        one(8, 32, 32, 32),
    ),
    Case(
        "interpolate.bicubic",
        lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"),
        one(4, 16, 32, 32),
    ),
    Case(
        "grid_sample",
        lambda x, grid: F.grid_sample(x, grid, align_corners=False),
        lambda: (torch.randn(8, 16, 32, 32), torch.rand(8, 32, 32, 2) * 2 - 1),
    ),
    Case("unfold", lambda x: F.unfold(x, 3, padding=1), one(8, 32, 28, 28)),
]
CONVOLUTION = [
    conv("conv1d", F.conv1d, (16, 64, 256), (64, 64, 5), padding=2),
    conv("conv2d", F.conv2d, (8, 64, 28, 28), (64, 64, 3, 3), padding=1),
    conv("conv2d.strided", F.conv2d, (4, 3, 112, 112), (64, 3, 7, 7), stride=2, padding=3),
    conv("conv2d.grouped", F.conv2d, (8, 64, 28, 28), (64, 8, 3, 3), padding=1, groups=8),
    conv("conv2d.depthwise", F.conv2d, (8, 64, 28, 28), (64, 1, 3, 3), padding=1, groups=64),
    conv("conv2d.dilated", F.conv2d, (8, 32, 28, 28), (32, 32, 3, 3), padding=2, dilation=2),
    conv(
        "conv_transpose2d", F.conv_transpose2d, (8, 64, 14, 14), (64, 32, 4, 4), stride=2, padding=1
    ),
    conv("conv3d", F.conv3d, (2, 16, 8, 28, 28), (32, 16, 3, 3, 3), padding=1),
    conv("conv_transpose1d", F.conv_transpose1d, (16, 64, 128), (64, 32, 4), stride=2, padding=1),
    conv(
        "conv_transpose3d",
        F.conv_transpose3d,
        (2, 16, 4, 14, 14),
        (16, 16, 4, 4, 4),
        stride=2,
        padding=1,
    ),
    conv("conv1d.grouped", F.conv1d, (8, 64, 512), (128, 16, 5), padding=2, groups=4),
    conv("conv1d.dilated", F.conv1d, (8, 64, 512), (128, 64, 5), padding=4, dilation=2),
    conv("conv3d.grouped", F.conv3d, (2, 16, 8, 16, 16), (32, 4, 3, 3, 3), padding=1, groups=4),
    conv(
        "conv_transpose2d.grouped",
        F.conv_transpose2d,
        (8, 32, 16, 16),
        (32, 8, 4, 4),
        stride=2,
        padding=1,
        groups=4,
    ),
    conv("conv3d.dilated", F.conv3d, (2, 16, 8, 14, 14), (16, 16, 3, 3, 3), padding=2, dilation=2),
]
OTHERS = [
    Case(
        "batch_norm",
        batch_norm,
        lambda: (torch.randn(16, 64, 28, 28), torch.ones(64), torch.zeros(64)),
    ),
    Case(
        "layer_norm",
        lambda x, w, b: F.layer_norm(x, (512,), w, b),
        lambda: (torch.randn(2048, 512), torch.ones(512), torch.zeros(512)),
    ),
    Case(
        "group_norm",
        lambda x, w, b: F.group_norm(x, 32, w, b),
        lambda: (torch.randn(4, 128, 32, 32), torch.ones(128), torch.zeros(128)),
    ),
    Case("softmax.channels", lambda x: x.softmax(1), one(2, 21, 256, 256)),
    Case("shared.by_samples", torch.add, pair((8, 197, 192), (197, 192))),
    Case("matmul", torch.matmul, pair((512, 512), (512, 512))),
    Case("mv", torch.mv, pair((1024, 1024), (1024,))),
    Case("sin", torch.sin, one(1024, 512)),
    Case("atan2", torch.atan2, pair((1024, 512), (1024, 512))),
    Case("remainder", lambda x: torch.remainder(x, 0.7), one(1024, 512)),
    Case("dropout", lambda x: F.dropout(x, 0.1), one(1024, 1024)),
    Case("noise", lambda x: x + torch.randn_like(x), one(1024, 1024)),
    Case("cdist", torch.cdist, pair((256, 32), (256, 32))),
    Case("fft", lambda x: torch.fft.rfft(x).abs(), one(256, 1024)),
    Case("svdvals", torch.linalg.svdvals, one(64, 64)),
    Case("solve", torch.linalg.solve, pair((256, 256), (256, 16))),
]
CASES = [*INDEXING, *ORDER, *ATTENTION, *POOLING, *CONVOLUTION, *OTHERS]


def step(case: Case, inputs: tuple[torch.Tensor, ...], seed: torch.Tensor) -> list[torch.Tensor]:
    """Forward and backward: the result and the gradient of every input that has one."""
    out = case.run(*inputs)
    leaves = [x for x in inputs if x.requires_grad]
    return [out, *torch.autograd.grad(out, leaves, seed)]


def on(device: str, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return tuple(x.to(device).requires_grad_(x.is_floating_point()) for x in inputs)


def timed(run: Callable[[], Any], clock: Clock) -> float:
    """Milliseconds of one run, on either device: the device's pending work belongs to it."""
    started = clock()
    alive = run()
    steps.sync(wait=True)
    took = clock() - started
    del alive
    return took * 1e3


def measure(case: Case, rounds: int, clock: Clock) -> dict[str, Any]:
    torch.manual_seed(0)
    host = case.inputs()
    with torch.no_grad():
        seed = torch.randn_like(case.run(*host))
    best = {"cpu": float("inf"), "xla": float("inf")}
    places = {device: (on(device, host), seed.to(device)) for device in best}
    for number in range(rounds + 1):
        for device, (inputs, weights) in places.items():
            runs = [timed(lambda i=inputs, w=weights: step(case, i, w), clock) for _ in range(RUNS)]
            if number:  # the first turn compiles
                best[device] = min(best[device], *runs[1:])
    ratio = best["xla"] / best["cpu"]
    line = {"case": case.name, "eager_ms": best["cpu"], "xla_ms": best["xla"], "ratio": ratio}
    return {k: round(v, 3) if isinstance(v, float) else v for k, v in line.items()} | (
        {"note": case.note} if case.note else {}
    )


def launch_ms(rounds: int, clock: Clock) -> float:
    x = torch.ones(1, device="xla")
    return round(min(timed(lambda: x + 1, clock) for _ in range(rounds * 10)), 3)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--match", default=".")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--clock", choices=sorted(CLOCKS), default="wall")
    options = parser.parse_args()
    clock = CLOCKS[options.clock]
    launch = launch_ms(options.rounds, clock)
    threads = torch.get_num_threads()
    print(json.dumps({"launch_ms": launch, "threads": threads, "clock": options.clock}))
    slow = []
    for case in CASES:
        if not re.search(options.match, case.name):
            continue
        line = measure(case, options.rounds, clock)
        print(json.dumps(line), flush=True)
        if line["ratio"] > LIMIT and not case.note:
            slow.append(case.name)
    if slow:
        print(f"slower than {LIMIT:g} times eager, without a note: {', '.join(slow)}")
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
