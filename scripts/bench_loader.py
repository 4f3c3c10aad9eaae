"""What the loader costs, beside a plain DataLoader.

    python scripts/bench_loader.py

Rows: batches that are quick to make. A pass of `MpDeviceLoader` beside a plain loop that moves each
batch and ends the step itself; seconds per 1000 batches, best of several passes. The ratio is to be
at most 1. Overlap: a loader that takes as long as the step; the time of a step beside that of the
step alone. The ratio is to be at most 1.05.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

from torch_xdist.core.devices import steps, transfer
from torch_xdist.core.record import dispatch
from torch_xdist.loaders.mp_device import MpDeviceLoader

DEVICE = "xla:0"
assert dispatch  # operators on device tensors


class Slow(Dataset[torch.Tensor]):
    """Samples that take a fixed time to read, as from a disk or a network."""

    def __init__(self, count: int, pause_s: float) -> None:
        self.count = count
        self.pause_s = pause_s

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self.pause_s)
        return torch.full((256,), float(index))


def timed(call: Callable[[], Any]) -> float:
    """Seconds of one call."""
    started_s = time.perf_counter()
    call()
    return time.perf_counter() - started_s


def plain_pass(loader: Iterable[Any]) -> None:
    """Move each batch and end the step, as a loop without a device loader does."""
    for batch in loader:
        steps.sync()
        for tensor in batch:
            transfer.to_device(tensor, DEVICE)
    steps.sync()


def device_pass(loader: MpDeviceLoader) -> None:
    """Only take the batches."""
    for _ in loader:
        pass


def rows(batches: int, passes: int) -> None:
    """Print the cost of quick batches."""
    data = TensorDataset(torch.randn(batches * 64, 32), torch.arange(batches * 64))
    loader = DataLoader(data, batch_size=64)
    ours = MpDeviceLoader(loader, DEVICE)
    plain_pass(loader)
    first_s = timed(lambda: device_pass(ours))
    # Taken in turns, so that a change of the machine's load meets both.
    pairs = [
        (timed(lambda: plain_pass(loader)), timed(lambda: device_pass(ours))) for _ in range(passes)
    ]
    plain_s, ours_s = (min(pair[i] for pair in pairs) for i in range(2))
    per_1000 = 1000 / batches
    seconds = {"plain": plain_s, "first_pass": first_s, "later_passes": ours_s}
    line = {f"{name}_s": round(taken_s * per_1000, 3) for name, taken_s in seconds.items()}
    print(json.dumps({**line, "rows_ratio": round(ours_s / plain_s, 3)}), flush=True)


def overlap(steps: int, read_s: float) -> None:
    """Print the cost of a loader that takes as long as the step."""
    plain = DataLoader(Slow(steps, read_s), batch_size=1)
    step_s = timed(lambda: plain_pass(plain)) / steps  # with what collating and moving take

    def sleep() -> None:
        for _ in range(steps):
            time.sleep(step_s)

    alone_s = timed(sleep) / steps
    loader = MpDeviceLoader(DataLoader(Slow(steps + 3, read_s), batch_size=1), DEVICE)
    batches = iter(loader)
    for _ in range(3):  # until it reads ahead
        next(batches)
        time.sleep(step_s)

    def run() -> None:
        for _ in batches:
            time.sleep(step_s)

    together_s = timed(run) / steps
    line = {"alone_ms": round(alone_s * 1e3, 2), "together_ms": round(together_s * 1e3, 2)}
    ratio, verdict = round(together_s / alone_s, 3), loader.input_wait.verdict()
    print(json.dumps({**line, "overlap_ratio": ratio, "verdict": verdict}), flush=True)


def main() -> None:
    """Run both."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--batches", type=int, default=1000)
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--read-ms", type=float, default=30.0)
    args = parser.parse_args()
    rows(args.batches, args.passes)
    overlap(args.steps, args.read_ms / 1e3)


if __name__ == "__main__":
    main()
