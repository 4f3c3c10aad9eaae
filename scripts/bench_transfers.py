"""What it costs to bring tensors to the device and back, beside torch's own copies.

    python scripts/bench_transfers.py [--mb 1024] [--rounds 7]

One JSON line for each pair, which are timed by turns: milliseconds (the least of the rounds) and
their ratio. A model of `--mb` in 16 parameters; 64 small tensors of 100 numbers.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import torch_xla
from torch_xdist.core.devices import transfer

DEVICE = "xla:0"
_SMALL = 64


def pair(name: str, ours: Callable[[], Any], theirs: Callable[[], Any], rounds: int) -> None:
    """Time two calls by turns; what they return is let go outside the time."""
    least = [float("inf"), float("inf")]
    for _ in range(rounds):
        for side, call in enumerate((ours, theirs)):
            began_s = time.perf_counter()
            kept = call()
            least[side] = min(least[side], time.perf_counter() - began_s)
            del kept
    mine, other = (round(seconds * 1e3, 3) for seconds in least)
    line = {"case": name, "ms": mine, "beside_ms": other, "ratio": round(mine / other, 2)}
    print(json.dumps(line), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--mb", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=7)
    asked = parser.parse_args()
    rows = asked.mb << 20 >> 4 + 2 + 10
    state = {f"layer{n}": torch.randn(rows, 1024) for n in range(16)}
    there = {name: value.to(DEVICE) for name, value in state.items()}
    torch_xla.sync()

    def cloned() -> Any:
        return [value.clone() for value in state.values()]

    pair(
        f"a model of {asked.mb} MB to the device / its clone",
        lambda: [value.to(DEVICE) for value in state.values()],
        cloned,
        asked.rounds,
    )
    pair(
        f"its state_dict to the host / a clone of {asked.mb} MB",
        lambda: [value.cpu() for value in there.values()],
        cloned,
        asked.rounds,
    )
    there.clear()
    with tempfile.TemporaryDirectory() as folder:
        torch.save(state, path := Path(folder) / "model.pt")
        pair(
            "torch.load onto the device / onto the host",
            lambda: torch.load(path, map_location=DEVICE),
            lambda: torch.load(path),
            asked.rounds,
        )
    small = [torch.randn(100) for _ in range(_SMALL)]
    whole = [torch.randn(100 * _SMALL)]
    pair(
        f"a batch of {_SMALL} small tensors / one of all their numbers",
        lambda: transfer.all_to_device(small, DEVICE, owned=True),
        lambda: transfer.all_to_device(whole, DEVICE, owned=True),
        20 * asked.rounds,
    )
    pair(
        f"the same / {_SMALL} calls of .to",
        lambda: transfer.all_to_device(small, DEVICE, owned=True),
        lambda: [tensor.to(DEVICE) for tensor in small],
        20 * asked.rounds,
    )
    on_device = [tensor.to(DEVICE) for tensor in small]
    torch_xla.sync()
    pair(
        f"{_SMALL} calls of .cpu() / of .clone()",
        lambda: [tensor.cpu() for tensor in on_device],
        lambda: [tensor.clone() for tensor in small],
        20 * asked.rounds,
    )


if __name__ == "__main__":
    main()
