#!/usr/bin/env python
"""How long a training step of whole models takes: on the device beside what else runs them.

    .venv/bin/python scripts/bench_models.py [MODEL ...] [--peers eager,inductor] [--plot FILE]

Each peer trains the same model in a process of its own, and they take turns: in each round every
one runs a few steps while the others wait. Peers: xdist (this project), eager torch, inductor
(`torch.compile` of the model; the optimizer as it is), jax (the GPT by hand, parameters donated),
and torch_xla, the real one, where XDIST_PEER_PYTHON names an interpreter that has it. Prints one
JSON line per model and peer (milliseconds per step: median and quartiles; of these the host's own,
until the step is launched; seconds of the first three steps, compilation included, no cache), then
a table of ratios to xdist's.
"""

import argparse
import contextlib
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "scripts")]

import models  # noqa: E402
from models import Training, class_loss  # noqa: E402

GPT = {"vocabulary": 512, "length": 128, "d": 256, "heads": 8, "layers": 6}


def _adamw(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-3)


def _sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9)


def _images(n: int, c: int, size: int) -> Callable[[], tuple[torch.Tensor, torch.Tensor]]:
    return lambda: (torch.randn(n, c, size, size), torch.randint(10, (n,)))


def _tokens(b: int, t: int, vocabulary: int) -> Callable[[], tuple[torch.Tensor, torch.Tensor]]:
    return lambda: (torch.randint(vocabulary, (b, t)), torch.randint(vocabulary, (b, t)))


MODELS: dict[str, Training] = {
    "mnist": Training(models.MnistNet, _images(64, 1, 28), nn.functional.nll_loss, _sgd),
    "resnet18": Training(models.ResNet18, _images(32, 3, 32), class_loss, _sgd),
    "gpt": Training(lambda: models.Gpt(**GPT), _tokens(8, 128, 512), class_loss, _adamw),
    "lstm": Training(
        lambda: models.Recurrent(nn.LSTM, 512, 256), _tokens(16, 64, 512), class_loss, _adamw
    ),
}
PEERS = ("xdist", "eager", "inductor", "jax", "torch_xla")
STEPS_A_TURN = 3


# ---- one peer, in its own process --------------------------------------------------------------

Step = Callable[[], Any]


def torch_step(training: Training, device: Any, after: Step, compiles: bool = False) -> Step:
    torch.manual_seed(0)
    model: Any = training.model().to(device)
    optimizer = training.optimizer([*model.parameters()])
    inputs, target = (part.to(device) for part in training.batch())
    run = torch.compile(model) if compiles else model

    def step() -> None:
        optimizer.zero_grad()
        training.loss(run(inputs), target).backward()
        optimizer.step()
        after()

    return step


def nothing() -> None:
    """What a peer that runs at once has to wait for."""


def step_and_wait(peer: str, model: str) -> tuple[Step, Step]:
    """What launches one step, and what waits for it."""
    if peer == "jax":
        import jax
        from bench_steps import jax_step

        launch, last = jax_step(GPT["layers"], GPT["d"], GPT["heads"], 8, GPT["length"]), []

        def step() -> None:
            last[:] = [launch()]

        return step, lambda: jax.block_until_ready(last)
    if peer in ("eager", "inductor"):
        return torch_step(MODELS[model], "cpu", nothing, peer == "inductor"), nothing
    import torch_xla
    import torch_xla.core.xla_model as xm

    return torch_step(MODELS[model], torch_xla.device(), torch_xla.sync), xm.wait_device_ops


def serve(peer: str, model: str) -> None:
    """Run the steps that stdin asks for, a line each turn; a line of JSON answers."""
    step, wait = step_and_wait(peer, model)
    started = time.perf_counter()
    for _ in range(3):
        step()
        wait()
    print(json.dumps({"first_s": time.perf_counter() - started}), flush=True)
    for line in sys.stdin:
        whole, host = [], []
        for _ in range(int(line)):
            started = time.perf_counter()
            step()
            host.append(time.perf_counter() - started)
            wait()
            whole.append(time.perf_counter() - started)
        print(json.dumps({"whole": whole, "host": host}), flush=True)


# ---- all peers by turns ------------------------------------------------------------------------


class Peer:
    """One process that trains a model when it is told to."""

    def __init__(self, name: str, model: str, python: str) -> None:
        self.name = name
        # Its first steps compile, whatever earlier runs have left.
        env = {**os.environ, "PJRT_DEVICE": "CPU", "XLA_PERSISTENT_CACHE_PATH": ""}
        env |= {"TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"}
        self._process = subprocess.Popen(
            [python, __file__, model, "--serve", name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=env,
        )
        self.first_s = float(self._answer()["first_s"])
        self.whole: list[float] = []
        self.host: list[float] = []

    def turn(self, steps: int) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{steps}\n")
        self._process.stdin.flush()
        answer = self._answer()
        self.whole += answer["whole"]
        self.host += answer["host"]

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _answer(self) -> Mapping[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with contextlib.suppress(ValueError):
                return dict(json.loads(line))
        raise SystemExit(f"bench_models: {self.name} ended with code {self._process.wait()}")

    def figures(self) -> dict[str, float]:
        low, median, high = (1e3 * q for q in statistics.quantiles(self.whole, n=4))
        return {
            "step_ms": round(median, 2),
            "quartiles_ms": [round(low, 2), round(high, 2)],  # type: ignore[dict-item]
            "host_ms": round(1e3 * statistics.median(self.host), 2),
            "first_three_s": round(self.first_s, 2),
        }


def peers_of(model: str, chosen: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The names of those that can train it, with their interpreters."""
    real = os.environ.get("XDIST_PEER_PYTHON", "")
    for name in chosen:
        if name == "torch_xla":
            if real:
                yield name, real
        elif name != "jax" or model == "gpt":
            yield name, sys.executable


def measure(model: str, chosen: Sequence[str], rounds: int) -> dict[str, dict[str, float]]:
    peers = []
    try:
        for name, python in peers_of(model, chosen):
            peers.append(Peer(name, model, python))
        for peer in peers:
            peer.turn(STEPS_A_TURN)
            peer.whole.clear()
            peer.host.clear()
        for _ in range(rounds):
            for peer in peers:
                peer.turn(STEPS_A_TURN)
    finally:
        for peer in peers:
            peer.end()
    return {peer.name: peer.figures() for peer in peers}


def table(found: Mapping[str, Mapping[str, Mapping[str, float]]]) -> str:
    """Markdown: milliseconds per step, and xdist's share of each peer's."""
    names = [name for name in PEERS if any(name in figures for figures in found.values())]
    lines = [f"| model | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    for model, figures in found.items():
        ours = figures["xdist"]["step_ms"]
        cells = [
            f"{figures[name]['step_ms']:g} ({ours / figures[name]['step_ms']:.2f})"
            if name in figures
            else "-"
            for name in names
        ]
        lines.append(f"| {model} | {' | '.join(cells)} |")
    return "\n".join(lines)


def plot(found: Mapping[str, Mapping[str, Mapping[str, float]]], path: Path) -> None:
    """Bars: the time of a step in each peer, by that of xdist."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 3.5), layout="constrained")
    names = [name for name in PEERS if any(name in figures for figures in found.values())]
    width = 0.8 / len(names)
    for place, name in enumerate(names):
        shown = [(i, f) for i, f in enumerate(found.values()) if name in f]
        heights = [f[name]["step_ms"] / f["xdist"]["step_ms"] for _, f in shown]
        axes.bar([i + (place + 0.5) * width - 0.4 for i, _ in shown], heights, width, label=name)
    axes.set_xticks(range(len(found)), [*found])
    axes.set_ylabel("time of a step / xdist's")
    axes.axhline(1.0, color="black", linewidth=0.5)
    axes.legend(ncols=len(names), frameon=False, fontsize="small")
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", metavar="MODEL", help=", ".join(MODELS))
    parser.add_argument("--peers", default=",".join(PEERS), help=f"of {', '.join(PEERS)}")
    parser.add_argument("--rounds", type=int, default=10, help="turns of each peer (10)")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the ratios into a file")
    parser.add_argument("--serve", choices=PEERS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    chosen = ["xdist", *(name for name in options.peers.split(",") if name != "xdist")]
    if unknown := [*{*options.models} - {*MODELS}, *{*chosen} - {*PEERS}]:
        parser.error(f"no such model or peer: {', '.join(sorted(unknown))}")
    if options.plot and importlib.util.find_spec("matplotlib") is None:
        parser.error("--plot needs matplotlib: pip install matplotlib")
    if options.serve:
        serve(options.serve, options.models[0])
        return
    found = {}
    for model in options.models or MODELS:
        found[model] = measure(model, chosen, options.rounds)
        for name, figures in found[model].items():
            print(
                json.dumps({"bench": "models", "model": model, "peer": name, **figures}), flush=True
            )
    print(table(found))
    if options.plot:
        plot(found, options.plot)


if __name__ == "__main__":
    main()
