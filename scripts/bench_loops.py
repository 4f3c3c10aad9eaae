#!/usr/bin/env python
"""Loops that a script writes out in Python: how long they take to compile and to run.

    .venv/bin/python scripts/bench_loops.py [--rounds 3] [--only rwkv,spiking] [--against CHECKOUT]

Most go over time; some go over the parameters: an optimizer of the script's own, a running mean of
them. One begins otherwise: its model is made on the device. Each is a process of its own with no
cache, which trains for a few steps, with AdamW if nothing is said; they take turns. One JSON line
for each loop: seconds of the first three steps (median, least and most) and milliseconds of a later
one, of eager torch too; with another checkout of this repository, of that.
"""

import argparse
import copy
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import nn

ROOT = Path(__file__).resolve().parent.parent
STEPS = 10
BATCH, WIDTH = 8, 64


class Rwkv(nn.Module):
    """RWKV's recurrence of keys and values, as its authors write it for a CPU."""

    times = 48

    def __init__(self) -> None:
        super().__init__()
        self.both = nn.Linear(WIDTH, 2 * WIDTH)
        self.decay = nn.Parameter(torch.linspace(-3, 0, WIDTH))
        self.first = nn.Parameter(torch.full((WIDTH,), 0.3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        key, value = self.both(x).chunk(2, -1)
        decay = -torch.exp(self.decay)
        above = below = torch.zeros_like(key[:, 0])
        top = torch.full_like(above, -1e38)
        out = torch.zeros_like(value)
        for t in range(self.times):
            now, seen = key[:, t], value[:, t]
            largest = torch.maximum(top, now + self.first)
            old, new = torch.exp(top - largest), torch.exp(now + self.first - largest)
            out[:, t] = (old * above + new * seen) / (old * below + new)
            largest = torch.maximum(top + decay, now)
            old, new = torch.exp(top + decay - largest), torch.exp(now - largest)
            above, below, top = old * above + new * seen, old * below + new, largest
        return out


class Mamba(nn.Module):
    """A selective state space, one step after the other."""

    times, states = 64, 8

    def __init__(self) -> None:
        super().__init__()
        self.step = nn.Linear(WIDTH, WIDTH)
        self.into = nn.Linear(WIDTH, self.states)
        self.out_of = nn.Linear(WIDTH, self.states)
        self.rate = nn.Parameter(torch.arange(1.0, self.states + 1).log().repeat(WIDTH, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        step = nn.functional.softplus(self.step(x))
        kept = torch.exp(step[..., None] * -torch.exp(self.rate))
        added = step[..., None] * self.into(x)[:, :, None] * x[..., None]
        out_of = self.out_of(x)
        state = torch.zeros_like(kept[:, 0])
        outs = []
        for t in range(self.times):
            state = kept[:, t] * state + added[:, t]
            outs.append((state @ out_of[:, t, :, None])[..., 0])
        return torch.stack(outs, 1)


class Spike(torch.autograd.Function):
    """1 above 0; its gradient is that of an arctangent."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return (x > 0).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        return grad / (1 + (torch.pi * x).square())


class Spiking(nn.Module):
    """Two layers of leaky neurons that fire."""

    times = 48

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        charges = [torch.zeros_like(x[:, 0]) for _ in self.layers]
        outs = []
        for t in range(self.times):
            fired = x[:, t]
            for i, layer in enumerate(self.layers):
                reset = (charges[i] > 1).to(x.dtype).detach()
                charges[i] = 0.9 * charges[i] * (1 - reset) + layer(fired)
                fired = Spike.apply(charges[i] - 1)
            outs.append(fired)
        return torch.stack(outs, 1)


class LstmCell(nn.Module):
    """A cell of torch's, called for each time."""

    times = 48
    kind: Callable[..., nn.Module] = nn.LSTMCell

    def __init__(self) -> None:
        super().__init__()
        self.cell = self.kind(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = None
        outs = []
        for t in range(self.times):
            state = self.cell(x[:, t], state)
            outs.append(state[0] if isinstance(state, tuple) else state)
        return torch.stack(outs, 1)


class GruCell(LstmCell):
    """The other one that is often called so."""

    kind = nn.GRUCell


class Smoothing(nn.Module):
    """A running mean with a rate for each channel."""

    times = 128

    def __init__(self) -> None:
        super().__init__()
        self.rate = nn.Parameter(torch.linspace(-2, 2, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rate = torch.sigmoid(self.rate)
        mean = x[:, 0]
        outs = [mean]
        for t in range(1, self.times):
            mean = (1 - rate) * mean + rate * x[:, t]
            outs.append(mean)
        return torch.stack(outs, 1)


class Heun(nn.Module):
    """A differential equation whose rate is learned, by Heun's method."""

    times = 64

    def __init__(self) -> None:
        super().__init__()
        self.rate = nn.Parameter(torch.linspace(0.1, 1, WIDTH))

    def slope(self, state: torch.Tensor) -> torch.Tensor:
        return torch.sin(state) - self.rate * state

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state, by = x[:, 0], 1 / self.times
        for _ in range(self.times):
            now = self.slope(state)
            state = state + 0.5 * by * (now + self.slope(state + by * now))
        return state


class Lion(torch.optim.Optimizer):
    """By the sign of a mean of gradients, one parameter after the other."""

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float = 1e-3) -> None:
        super().__init__(parameters, {"lr": lr, "kept": (0.9, 0.99), "decay": 0.01})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            rate, (kept, kept_longer) = group["lr"], group["kept"]
            for parameter in group["params"]:
                state = self.state[parameter]
                if not state:
                    state["mean"] = torch.zeros_like(parameter)
                mean = state["mean"]
                parameter.mul_(1 - rate * group["decay"])
                update = (mean * kept).add(parameter.grad, alpha=1 - kept).sign_()
                parameter.add_(update, alpha=-rate)
                mean.mul_(kept_longer).add_(parameter.grad, alpha=1 - kept_longer)


class Layers(nn.Module):
    """A deep perceptron."""

    times, layers = 1, 12

    def __init__(self) -> None:
        super().__init__()
        each = [nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.GELU()]
        self.all = nn.Sequential(*(copy.deepcopy(one) for _ in range(self.layers) for one in each))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.all(x)  # type: ignore[no-any-return]


class ByParameter(Layers):
    """Layers whose optimizer a script writes out."""

    optimizer = Lion


class Averaged(Layers):
    """Layers of whose parameters there is a running mean."""

    has_mean = True


class MadeThere(Layers):
    """Layers that are made on the device."""

    is_made_there = True


LOOPS: dict[str, Callable[[], Any]] = {
    "rwkv": Rwkv,
    "mamba": Mamba,
    "spiking": Spiking,
    "lstm_cell": LstmCell,
    "gru_cell": GruCell,
    "smoothing": Smoothing,
    "heun": Heun,
    "by_parameter": ByParameter,
    "averaged": Averaged,
    "made_there": MadeThere,
}


def serve(name: str, device: str) -> None:
    """Train, and print the seconds of each step."""
    wait = _wait() if device == "xla" else lambda: None
    torch.manual_seed(0)
    with torch.device(device if getattr(LOOPS[name], "is_made_there", False) else "cpu"):
        loop = LOOPS[name]()
        model = nn.Sequential(nn.Linear(WIDTH, WIDTH), loop, nn.Linear(WIDTH, 1))
    model = model.to(device)
    means = [*copy.deepcopy(model).parameters()] if getattr(loop, "has_mean", False) else []
    batch = torch.randn(BATCH, loop.times, WIDTH)
    optimizer = getattr(loop, "optimizer", torch.optim.AdamW)(model.parameters(), lr=1e-3)
    taken = []
    for _ in range(STEPS):
        began_s = time.perf_counter()
        x = batch.to(device)
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        with torch.no_grad():
            for mean, parameter in zip(means, model.parameters()):
                mean.lerp_(parameter, 0.1)
        wait()
        taken.append(time.perf_counter() - began_s)
    print(json.dumps(taken), flush=True)


def _wait() -> Callable[[], None]:
    import torch_xla

    torch_xla.sync(wait=True)
    return lambda: torch_xla.sync(wait=True)


def steps_of(name: str, device: str, checkout: Path) -> list[float]:
    """Seconds of each step, in a new process, by the code of a checkout."""
    environ = {**os.environ, "XLA_PERSISTENT_CACHE_PATH": "", "PJRT_DEVICE": "CPU"}
    environ["PYTHONPATH"] = str(checkout / "src")
    command = [sys.executable, __file__, "--serve", name, device]
    done = subprocess.run(command, capture_output=True, text=True, env=environ, timeout=1800)
    if done.returncode:
        raise SystemExit(f"{name} on {device} ({done.returncode}):\n{done.stderr[-2000:]}")
    return [float(one) for one in json.loads(done.stdout.splitlines()[-1])]


def summary(taken: list[list[float]]) -> dict[str, float]:
    """Of several runs, each the seconds of its steps."""
    first = [sum(steps[:3]) for steps in taken]
    later = [1e3 * statistics.median(steps[3:]) for steps in taken]
    return {
        "first_three_s": round(statistics.median(first), 2),
        "least_s": round(min(first), 2),
        "most_s": round(max(first), 2),
        "step_ms": round(statistics.median(later), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default=",".join(LOOPS), help="names, with commas between")
    parser.add_argument("--against", type=Path, help="another checkout, to compare with")
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.serve:
        serve(*asked.serve)
        return
    names = asked.only.split(",")
    if unknown := set(names) - LOOPS.keys():
        parser.error(f"no loops: {', '.join(sorted(unknown))}; there are {', '.join(LOOPS)}")
    sides = {"ours": ("xla", ROOT), "eager": ("cpu", ROOT)}
    if asked.against:
        sides["before"] = ("xla", asked.against.resolve())
    for name in names:
        runs: dict[str, list[list[float]]] = {side: [] for side in sides}
        for _ in range(asked.rounds):
            for side, (device, checkout) in sides.items():
                runs[side].append(steps_of(name, device, checkout))
        print(json.dumps({"loop": name} | {k: summary(v) for k, v in runs.items()}), flush=True)


if __name__ == "__main__":
    main()
