#!/usr/bin/env python
"""How fast a training step is: host time per recorded row, step and memory against plain JAX.

    .venv/bin/python scripts/bench_steps.py [--what host|replay|step|import]

Prints one JSON line per figure. `host` trains a GPT too small to keep the device busy, so the
time of a step is what recording and launching cost: per torch operator of the step (as eager torch
runs it) and per recorded row, which may hold many operators; once with AdamW's default, whose
update is one row, and once with foreach=False, where each operator of it is recorded. `replay` is
the same step by turns with one of `torch_xla.compile(pure=True)`, the device idle before each: the
time until the call returns, and how much of it is XLA's own to launch the program. `step`
trains a larger one beside a hand-written JAX step of the same mathematics, turn by turn in one
process; `import` times `import torch_xdist` after `import torch`.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import torch_xdist.core.torch_side.registration  # noqa: F401
from torch_xdist import metrics
from torch_xdist.core.devices import steps
from torch_xdist.core.programs import program
from torch_xdist.core.run import cuts
from torch_xdist.training import compiled_step

VOCABULARY = 512
# Runs of a turn of `replay`, of which the first does not count: nobody's loop records every other
# step, and what one leaves in the caches is not the other's.
RUNS = 4


class Block(nn.Module):
    """One pre-norm transformer block on [b, t, d]."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, d))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    """Token ids [b, t] in, logits [b, t, vocabulary] out."""

    def __init__(self, layers: int, width: int, heads: int, length: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.places = nn.Parameter(torch.zeros(length, width))
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids) + self.places
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def torch_step(model: nn.Module, optimizer: Any, ids: torch.Tensor) -> torch.Tensor:
    optimizer.zero_grad()
    logits = model(ids)
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids.flatten())
    loss.backward()
    optimizer.step()
    return loss.detach()


class OperatorCount(TorchDispatchMode):
    """Counts the operators that run under it."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def operators_of_step(layers: int, width: int, heads: int, batch: int, length: int) -> int:
    """How many torch operators one step is in eager torch on the CPU."""
    model = GPT(layers, width, heads, length)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    ids = torch.randint(0, VOCABULARY, (batch, length))
    torch_step(model, optimizer, ids)
    with OperatorCount() as operators:
        torch_step(model, optimizer, ids)
    return operators.count


def device_step(
    layers: int,
    width: int,
    heads: int,
    batch: int,
    length: int,
    *,
    foreach: bool | None = None,
    pure: bool = False,
) -> Callable[[], Any]:
    torch.manual_seed(0)
    model = GPT(layers, width, heads, length).to("xla")
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, foreach=foreach)
    ids = torch.randint(0, VOCABULARY, (batch, length)).to("xla")

    def step() -> Any:
        loss = torch_step(model, optimizer, ids)
        steps.sync()
        return loss

    if pure:
        replayed = compiled_step.compile(torch_step, pure=True)
        return lambda: replayed(model, optimizer, ids)
    return step


def jax_step(layers: int, width: int, heads: int, batch: int, length: int) -> Callable[[], Any]:
    """The same model and optimizer written by hand in JAX, parameters donated."""
    torch.manual_seed(0)
    model = GPT(layers, width, heads, length)
    params = {n: jnp.asarray(p.detach().numpy()) for n, p in model.named_parameters()}
    ids = jnp.asarray(torch.randint(0, VOCABULARY, (batch, length)).numpy())
    state = (params, jax.tree.map(jnp.zeros_like, params), jax.tree.map(jnp.zeros_like, params), 0)
    update = jax.jit(lambda state, ids: _jax_update(state, ids, layers, heads), donate_argnums=0)

    def step() -> Any:
        nonlocal state
        state, loss = update(state, ids)
        return loss

    return step


def _jax_norm(p: Any, name: str, x: Any) -> Any:
    mean = x.mean(-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(variance + 1e-5) * p[f"{name}.weight"] + p[f"{name}.bias"]


def _jax_linear(p: Any, name: str, x: Any) -> Any:
    return x @ p[f"{name}.weight"].T + p[f"{name}.bias"]


def _jax_loss(p: Any, ids: Any, layers: int, heads: int) -> Any:
    b, t = ids.shape
    x = p["tokens.weight"][ids] + p["places"]
    d = x.shape[-1]
    mask = jnp.tril(jnp.ones((t, t), bool))
    for i in range(layers):
        block = f"blocks.{i}."
        qkv = _jax_linear(p, block + "qkv", _jax_norm(p, block + "norm1", x))
        q, k, v = jnp.moveaxis(qkv.reshape(b, t, 3, heads, -1), 2, 0)
        scores = jnp.einsum("bthd,bshd->bhts", q, k) / (d // heads) ** 0.5
        weights = jax.nn.softmax(jnp.where(mask, scores, -jnp.inf), -1)
        y = jnp.einsum("bhts,bshd->bthd", weights, v).reshape(b, t, d)
        x = x + _jax_linear(p, block + "out", y)
        hidden = jax.nn.gelu(
            _jax_linear(p, block + "up", _jax_norm(p, block + "norm2", x)), approximate=False
        )
        x = x + _jax_linear(p, block + "down", hidden)
    logits = _jax_norm(p, "norm", x) @ p["head.weight"].T
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), ids[..., None], -1).mean()


def _jax_update(state: Any, ids: Any, layers: int, heads: int) -> Any:
    params, m, v, count = state
    loss, grads = jax.value_and_grad(_jax_loss)(params, ids, layers, heads)
    count = count + 1
    m = jax.tree.map(lambda m, g: m + 0.1 * (g - m), m, grads)
    v = jax.tree.map(lambda v, g: v * 0.999 + 0.001 * g * g, v, grads)
    fix1, fix2 = 1 - 0.9**count, jnp.sqrt(1 - 0.999**count)
    params = jax.tree.map(
        lambda p, m, v: _jax_adam(p, m, v, fix1, fix2),
        params,
        m,
        v,
    )
    return (params, m, v, count), loss


def _jax_adam(p: Any, m: Any, v: Any, fix1: Any, fix2: Any) -> Any:
    new = p * (1 - 1e-5) - 1e-3 / fix1 * m / (jnp.sqrt(v) / fix2 + 1e-8)
    return new.astype(p.dtype)


def say(name: str, **figures: Any) -> None:
    print(json.dumps({"bench": name, **figures}), flush=True)


def bench_host(rounds: int) -> None:
    """Host time of a step: recording and launching, where next to nothing is computed."""
    shape = (6, 32, 2, 1, 8)
    operators = operators_of_step(*shape)
    for name, foreach in (("default", None), ("foreach=False", False)):
        step = device_step(*shape, foreach=foreach)
        for _ in range(5):
            step()
        walls, busy = [], []
        for _ in range(rounds):
            steps.wait_device_ops()
            started, clock = time.perf_counter(), time.thread_time()
            step()
            walls.append(time.perf_counter() - started)
            busy.append(time.thread_time() - clock)
        rows = max(c.rows for c in list(cuts.LOG)[-5:])
        median = statistics.median(walls)
        say(
            "host",
            adamw=name,
            operators=operators,
            rows=rows,
            step_ms=round(median * 1e3, 2),
            us_per_operator=round(median / operators * 1e6, 2),
            us_per_row=round(median / rows * 1e6, 2),
            # On a busy machine only the processor time of the quickest step tells.
            best_processor_us_per_operator=round(min(busy) / operators * 1e6, 2),
            best_processor_us_per_row=round(min(busy) / rows * 1e6, 2),
        )


def bench_replay(rounds: int) -> None:
    """Host time of a step that is recorded, and of one that is replayed, by turns."""
    shape = (6, 32, 2, 1, 8)
    launched: dict[str, list[float]] = {"recorded": [], "replayed": []}
    launches: list[float] = []
    runs: dict[str, tuple[Callable[[], Any], list[float], list[float]]] = {
        "recorded": (device_step(*shape), [], []),
        "replayed": (device_step(*shape, pure=True), [], []),
    }
    for step, *_ in runs.values():
        for _ in range(5):
            step()
    timed = program.run

    def run(*arguments: Any) -> None:
        started = time.perf_counter()
        timed(*arguments)
        launches.append(time.perf_counter() - started)

    program.run = run
    before = metrics.counter_value("ReplayedStep") or 0
    for _ in range(rounds):
        for name, (step, walls, busy) in runs.items():
            launches = launched[name]
            for number in range(RUNS):
                steps.wait_device_ops()
                started, clock = time.perf_counter(), time.thread_time()
                step()
                if number:
                    walls.append(time.perf_counter() - started)
                    busy.append(time.thread_time() - clock)
                else:
                    launches.pop()
    program.run = timed
    assert (metrics.counter_value("ReplayedStep") or 0) - before == rounds * RUNS
    for name, (_, walls, busy) in runs.items():
        say(
            "replay",
            step=name,
            median_ms=round(statistics.median(walls) * 1e3, 3),
            best_ms=round(min(walls) * 1e3, 3),
            best_processor_ms=round(min(busy) * 1e3, 3),
        )
    of_replays = launched["replayed"]
    say(
        "replay",
        step="XLA's launch of the replayed one",
        median_ms=round(statistics.median(of_replays) * 1e3, 3),
        best_ms=round(min(of_replays) * 1e3, 3),
    )


def bench_step(rounds: int) -> None:
    """Whole steps beside hand-written JAX and eager torch, turn by turn."""
    shape = (6, 256, 8, 8, 128)
    ours, jaxs = device_step(*shape), jax_step(*shape)
    torch.manual_seed(0)
    model = GPT(shape[0], shape[1], shape[2], shape[4])
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    ids = torch.randint(0, VOCABULARY, (shape[3], shape[4]))
    runs: dict[str, tuple[Callable[[], Any], list[float]]] = {
        "device": (lambda: ours().item(), []),
        "jax": (lambda: jaxs().block_until_ready(), []),
        "eager": (lambda: torch_step(model, optimizer, ids), []),
    }
    for turn in range(rounds + 3):
        for run, times in runs.values():
            started = time.perf_counter()
            run()
            if turn >= 3:
                times.append(time.perf_counter() - started)
    medians = {name: statistics.median(times) * 1e3 for name, (_, times) in runs.items()}
    figures = {f"{name}_ms": round(median, 1) for name, median in medians.items()}
    say("step", **figures, device_to_jax=round(medians["device"] / medians["jax"], 3))
    bench_memory(shape)


def bench_memory(shape: tuple[int, ...]) -> None:
    """Bytes a compiled step needs at its peak, ours beside JAX's, as XLA counts them."""
    # Of the programs with the most results the last that ran: the host's step has as many.
    step = max(program.PROGRAMS.values(), key=lambda p: (len(p.outs), p.used))
    ours = _peak_bytes(step.memory())
    torch.manual_seed(0)
    model = GPT(shape[0], shape[1], shape[2], shape[4])
    params = {n: jnp.asarray(p.detach().numpy()) for n, p in model.named_parameters()}
    state = (params, params, params, jnp.asarray(0))
    ids = jnp.zeros((shape[3], shape[4]), jnp.int64)
    update = jax.jit(lambda s, i: _jax_update(s, i, shape[0], shape[2]), donate_argnums=0)
    theirs = _peak_bytes(update.lower(state, ids).compile().memory_analysis())
    say(
        "memory",
        device_mb=round(ours / 1e6, 1),
        jax_mb=round(theirs / 1e6, 1),
        ratio=round(ours / theirs, 3),
    )


def _peak_bytes(stats: Any) -> int:
    arguments, outputs = stats.argument_size_in_bytes, stats.output_size_in_bytes
    return arguments + outputs + stats.temp_size_in_bytes - stats.alias_size_in_bytes


def bench_import(rounds: int = 7) -> None:
    """What `import torch_xdist` adds to `import torch`."""
    code = "import torch,time;t=time.perf_counter();import torch_xdist;print(time.perf_counter()-t)"
    times = [float(subprocess.check_output([sys.executable, "-c", code])) for _ in range(rounds)]
    say("import", added_ms=round(statistics.median(times) * 1e3, 2))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--what", choices=["host", "replay", "step", "import", "all"], default="all"
    )
    parser.add_argument("--rounds", type=int, default=40)
    options = parser.parse_args()
    if options.what in ("host", "all"):
        bench_host(options.rounds * 5)
    if options.what in ("replay", "all"):
        bench_replay(options.rounds * 5)
    if options.what in ("step", "all"):
        bench_step(options.rounds)
    if options.what in ("import", "all"):
        bench_import()


if __name__ == "__main__":
    main()
