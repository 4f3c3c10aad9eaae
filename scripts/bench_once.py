"""What it costs where programs come once: computed on the host, compiled, and eager torch.

    python scripts/bench_once.py [--rounds 3]

One JSON line for each of three scripts: seconds (medians of rounds, by turns, each in a process of
its own, without programs on disk) and the ratio of computed to compiled. `numbers`: 200 vectors of
different lengths, of each of which two numbers are read. `batches`: 60 steps of a perceptron with
AdamW on batches of different sizes. `ragged`: 30 steps of a transformer's layer on sequences of
different lengths.
"""

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F


def numbers(device: str) -> None:
    for n in range(10, 210):
        x = torch.linspace(0, 1, n).to(device)
        y = (x.sin() * 2 + x).softmax(0)
        (y @ y).item()
        y.max().item()


def _trained(net: torch.nn.Module, inputs: list[torch.Tensor], device: str) -> None:
    net = net.to(device)
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3)
    for x in inputs:
        largest = net(x.to(device)).amax(-1)
        loss = F.smooth_l1_loss(largest, torch.zeros_like(largest))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss.item()


def batches(device: str) -> None:
    sizes = [4, 128, 128, 2]
    layers = [[torch.nn.Linear(*pair), torch.nn.ReLU()] for pair in itertools.pairwise(sizes)]
    net = torch.nn.Sequential(*[part for layer in layers for part in layer][:-1])
    _trained(net, [torch.randn(n, 4) for n in range(20, 80)], device)


def ragged(device: str) -> None:
    net = torch.nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
    _trained(net, [torch.randn(4, n, 64) for n in range(20, 50)], device)


SCRIPTS: dict[str, Callable[[str], None]] = {
    "numbers": numbers,
    "batches": batches,
    "ragged": ragged,
}
SIDES = {"computed": ("xla", "1"), "compiled": ("xla", "0"), "eager": ("cpu", "0")}


def child(name: str, device: str) -> None:
    """Time one script in this process."""
    if device == "xla":
        import torch_xla  # noqa: F401
    torch.manual_seed(0)
    began_s = time.perf_counter()
    SCRIPTS[name](device)
    print(time.perf_counter() - began_s)


def timed_s(name: str, side: str) -> float:
    device, once = SIDES[side]
    ours = {"PJRT_DEVICE": "CPU", "XLA_PERSISTENT_CACHE_PATH": "", "XDIST_COMPUTE_ONCE": once}
    command = [sys.executable, __file__, "--child", name, "--device", device]
    told = subprocess.run(
        command, env={**os.environ, **ours}, capture_output=True, text=True, check=True
    )
    return float(told.stdout.split()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--child", choices=SCRIPTS)
    parser.add_argument("--device", default="xla")
    asked = parser.parse_args()
    if asked.child:
        child(asked.child, asked.device)
        return
    for name in SCRIPTS:
        took: dict[str, list[float]] = {side: [] for side in SIDES}
        for _ in range(asked.rounds):
            for side in SIDES:
                took[side].append(timed_s(name, side))
        median = {side: statistics.median(times) for side, times in took.items()}
        line = {f"{side}_s": round(seconds, 2) for side, seconds in median.items()}
        ratio = round(median["computed"] / median["compiled"], 3)
        print(json.dumps({"case": name, **line, "computed / compiled": ratio}), flush=True)


if __name__ == "__main__":
    main()
