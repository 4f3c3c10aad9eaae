"""Matrix products with and without Triton's kernels: seconds to compile, milliseconds of a step.

XLA compiles and times several kernels of Triton for each product beside the library's. Exact
products of float32 are compiled without (`core/programs/compile_options.py`); what that would be
for TF32 and for halves is measured here. Each way is a process of its own; they compile at once,
and take turns with their steps.
"""

import contextlib
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from gpu_parts.place import LOGS, Place

WAYS = {
    "float32": ("highest", ""),
    "TF32": ("high", ""),
    "TF32, no Triton": ("high", "--xla_gpu_enable_triton_gemm=false"),
    "bfloat16": ("bfloat16", ""),
    "bfloat16, no Triton": ("bfloat16", "--xla_gpu_enable_triton_gemm=false"),
}
_MOST_S = 15.0
_ROUNDS = 5


def compiling(place: Place) -> None:
    """A perceptron's step each way: what its first three take, and later ones by turns."""
    LOGS.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        served = {name: stack.enter_context(_Way(name, place.rehearses)) for name in WAYS}
        first = {name: way.line() for name, way in served.items()}
        taken: dict[str, list[float]] = {name: [] for name in WAYS}
        for _ in range(_ROUNDS):
            for name, way in served.items():
                taken[name].append(way.step_ms())
    for name, seconds in first.items():
        step_ms = round(statistics.median(taken[name]), 3)
        place.found(name, {"first_three_s": round(seconds, 2), "step_ms": step_ms})
    words = f"exact products of float32 are compiled in {_MOST_S:.0f} s"
    place.need_on_gpu(words, lambda: first["float32"] < _MOST_S, first)


class _Way:
    """The process of one way; runs/check_gpu has what it says."""

    def __init__(self, name: str, rehearses: bool) -> None:
        precision, flags = WAYS[name]
        said = f"{os.environ.get('XLA_FLAGS', '')} {'' if rehearses else flags}"
        words = [sys.executable, "-m", __name__, precision, *(["--rehearse"] * rehearses)]
        self._log = LOGS / f"compiling {name}.log"
        with self._log.open("w") as errors:
            self._process = subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**os.environ, "XLA_FLAGS": said.strip()},
            )

    def __enter__(self) -> "_Way":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def line(self) -> float:
        assert self._process.stdout is not None
        said = self._process.stdout.readline()
        return float(said) if said else sys.exit(f"a process ended; {self._log} says why")

    def step_ms(self) -> float:
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        return self.line()


def _step(precision: str, rehearses: bool) -> Callable[[], Any]:
    """A step of SGD, replayed: the device is not kept waiting."""
    import torch
    from torch import nn

    import torch_xla

    is_half = precision == "bfloat16"
    torch.set_float32_matmul_precision("highest" if is_half else precision)
    width, batch = (16, 8) if rehearses else (1024, 8192)
    layers = [nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, 2 * width), nn.GELU()]
    net = nn.Sequential(*layers, nn.Linear(2 * width, width)).to("xla")
    optimizer = torch.optim.SGD(net.parameters(), 1e-3)
    inputs, wanted = (torch.randn(batch, width).to("xla") for _ in range(2))

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        with torch.autocast("xla", torch.bfloat16, enabled=is_half):
            got = net(inputs)
        loss = nn.functional.mse_loss(got.float(), wanted)
        loss.backward()
        optimizer.step()
        return loss.detach()

    replayed: Callable[[], Any] = torch_xla.compile(step, pure=True)
    return replayed


def _serve(precision: str, rehearses: bool) -> None:
    """Print the seconds of the first steps; for each line that comes, the milliseconds of one."""
    import torch_xla.core.xla_model as xm

    step = _step(precision, rehearses)

    def seconds_of(count: int) -> float:
        began_s = time.perf_counter()
        for _ in range(count):
            step()
        xm.wait_device_ops()
        return time.perf_counter() - began_s

    print(seconds_of(3), flush=True)
    count = 2 if rehearses else 50
    for _ in sys.stdin:
        print(1e3 * seconds_of(count) / count, flush=True)


if __name__ == "__main__":
    _serve(sys.argv[1], "--rehearse" in sys.argv)
