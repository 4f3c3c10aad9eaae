#!/usr/bin/env python
"""How much of a model's step on a CPU its matrix products take: in XLA and in torch, each alone.

    .venv/bin/python scripts/bench_products.py [MODEL ...] [--rounds 10]

Finds the products in what XLA compiled for a step of bench_models.py (its `dot`s, as often as
loops run them), and times each alone: in XLA by the quicker of its ways, as a loop of several turns
whose threads stay awake as in a step, and in torch. Sums over all of them stand beside eager
torch's whole step, in the same process and by turns. A ratio of XLA's above 1 means that no program
of XLA's with these products reaches eager torch on this CPU; one with others may. The time of a
loop that does nothing is taken off XLA's. Prints one JSON line per product and per model, then a
table.
"""

import argparse
import functools
import json
import math
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import bench_models
import jax
import jax.numpy as jnp
import torch

MODELS = ("gpt", "lstm")
# Each with the options to compile with; one that a release does not know is left out.
WAYS: dict[str, dict[str, str]] = {
    "xla": {},
    "xla without YNNPACK": {"xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_REDUCE"},
}
DTYPES = {"f32": "float32", "f64": "float64", "bf16": "bfloat16", "f16": "float16"}
# Calls of one turn take about this long.
TURN_MS = 10.0
SETTLE_S = 0.02
# Products of XLA's that one program takes.
IN_ONE = 16
Run = Callable[[], Any]


class Product(NamedTuple):
    """A `dot`: its operands as they lie in memory, the last dim being that of neighbours."""

    dtype: str
    left: tuple[int, ...]
    right: tuple[int, ...]
    batch: tuple[tuple[int, ...], tuple[int, ...]]  # dims of both, in pairs
    summed: tuple[tuple[int, ...], tuple[int, ...]]

    def __str__(self) -> str:
        shapes = (str([*shape]).replace(" ", "") for shape in (self.left, self.right))
        return f"{self.dtype} {' x '.join(shapes)} over {[*self.summed[0]]}, {[*self.summed[1]]}"

    def free(self, side: int) -> tuple[int, ...]:
        """The dims of an operand that are dims of the result alone."""
        taken = self.batch[side] + self.summed[side]
        return tuple(d for d in range(len((self.left, self.right)[side])) if d not in taken)


# ---- what a step multiplies ----------------------------------------------------------------------

_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.-]+) = (\w+)\[([\d,]*)\](?:\{([\d,]*))?")
_DOT = re.compile(r" dot\((?:\S+ )?%?([\w.-]+), (?:\S+ )?%?([\w.-]+)\)")
_CALLED = re.compile(r"\b(?:calls|to_apply|body|branch_computations)=\{?((?:%?[\w.-]+(?:, )?)+)")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')


def numbers(text: str | None) -> tuple[int, ...]:
    return tuple(int(part) for part in (text or "").split(",") if part)


def products_of(hlo: str) -> Counter[Product]:
    """How often a run of this module computes each product; loops of unknown length run once."""
    products: dict[str, list[Product]] = {}
    calls: dict[str, list[tuple[str, int]]] = {}
    shapes: dict[str, tuple[str, tuple[int, ...], tuple[int, ...]]] = {}
    name = entry = ""
    for line in hlo.splitlines():
        if began := _COMPUTATION.match(line):
            name = began[2]
            entry = name if began[1] else entry
            products[name], calls[name], shapes = [], [], {}
        elif name:
            if found := _INSTRUCTION.match(line):
                shapes[found[1]] = (found[2], numbers(found[3]), numbers(found[4]))
            if dot := _DOT.search(line):
                products[name].append(_product(line, shapes[dot[1]], shapes[dot[2]]))
            trips = _TRIPS.search(line)
            for called in _CALLED.findall(line):
                names = [other.strip(" %") for other in called.split(",")]
                calls[name] += [(other, int(trips[1]) if trips else 1) for other in names]

    @functools.cache
    def count(name: str) -> Counter[Product]:
        total = Counter(products.get(name, ()))
        for called, times in calls.get(name, ()):
            total.update({product: times * n for product, n in count(called).items()})
        return total

    return count(entry)


def _product(line: str, left: Any, right: Any) -> Product:
    def dims(what: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
        found = [re.search(rf"{side}_{what}_dims=\{{([\d,]*)", line) for side in ("lhs", "rhs")]
        return tuple(numbers(f[1]) if f else () for f in found)  # type: ignore[return-value]

    # Layouts name the quickest dim first.
    orders = [tuple(reversed(layout)) or tuple(range(len(s))) for _, s, layout in (left, right)]
    lying = [tuple(s[d] for d in order) for (_, s, _), order in zip((left, right), orders)]
    batch, summed = (
        tuple(tuple(order.index(d) for d in ds) for order, ds in zip(orders, dims(what)))
        for what in ("batch", "contracting")
    )
    return Product(left[0], lying[0], lying[1], batch, summed)  # type: ignore[arg-type]


def compiled_step(model: str) -> str:
    """The text of what XLA made of a training step, by a process that trains."""
    with tempfile.TemporaryDirectory() as folder:
        flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_dump_to={folder} --xla_dump_hlo_as_text"
        env = {**os.environ, "XLA_FLAGS": flags, "PJRT_DEVICE": "CPU"}
        subprocess.run(
            [sys.executable, bench_models.__file__, model, "--serve", "xdist"],
            env={**env, "XLA_PERSISTENT_CACHE_PATH": ""},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            check=True,
        )
        texts = [f.read_text() for f in Path(folder).glob("*after_optimizations.txt")]
    return max(texts, key=lambda text: products_of(text).total())


# ---- how long it takes ---------------------------------------------------------------------------


def in_xla(product: Product) -> dict[str, Run]:
    """What runs it, by each of XLA's ways."""
    dtype = jnp.dtype(DTYPES[product.dtype])
    arrays = [jnp.ones(shape, dtype) for shape in (product.left, product.right)]
    dims = (product.summed, product.batch)
    smaller = int(arrays[1].size < arrays[0].size)

    def product_of(operands: Sequence[Any]) -> Any:
        return jax.lax.dot_general(*operands, dims)

    def turns(*operands: Any) -> Any:
        def turn(_: Any, state: tuple[Any, Any]) -> tuple[Any, Any]:
            """A product, which reads a number of the one before: they cannot be taken at once."""
            given = [*operands]
            given[smaller] = changed = state[0]
            result = product_of(given)
            corner = (0,) * changed.ndim
            # The same number; XLA does not know that a number times zero is zero.
            same = changed[corner] + 0 * jnp.reshape(result, -1)[0]
            return changed.at[corner].set(same), result

        result = jax.eval_shape(product_of, operands)
        empty = jnp.zeros(result.shape, dtype)
        return jax.lax.fori_loop(0, IN_ONE, turn, (operands[smaller], empty))[1]

    lowered = jax.jit(turns).lower(*arrays)
    found = {}
    for way, options in WAYS.items():
        try:
            compiled = lowered.compile(compiler_options=options)
        except Exception as error:
            print(f"bench_products: {way} is left out: {error}", file=sys.stderr)
            continue
        found[way] = lambda run=compiled: jax.block_until_ready(run(*arrays))
    return found


def in_torch(product: Product) -> Run:
    """What runs it in torch: as matrices [b, m, k] and [b, k, n], which lie as XLA's do."""
    dtype = getattr(torch, DTYPES[product.dtype])
    batch, summed, free = product.batch, product.summed, [product.free(side) for side in (0, 1)]
    b, k = (math.prod(product.left[d] for d in dims) for dims in (batch[0], summed[0]))
    left = torch.ones(product.left, dtype=dtype).permute(*batch[0], *free[0], *summed[0])
    right = torch.ones(product.right, dtype=dtype).permute(*batch[1], *summed[1], *free[1])
    left, right = left.reshape(b, -1, k), right.reshape(b, k, -1)
    if b == 1:
        return functools.partial(torch.mm, left[0], right[0])
    return functools.partial(torch.bmm, left, right)


def turn_ms(run: Run, calls: int) -> float:
    """Milliseconds of a call, when nobody's threads spin any more and its own have begun to."""
    time.sleep(SETTLE_S)
    run()
    started = time.perf_counter()
    for _ in range(calls):
        run()
    return 1e3 * (time.perf_counter() - started) / calls


def medians(runs: Mapping[Any, Run], rounds: int) -> dict[Any, float]:
    """Milliseconds of each, by turns."""
    calls, found = {}, {}
    for key, run in runs.items():
        run()
        calls[key] = max(1, min(1000, int(TURN_MS / turn_ms(run, 1))))
        found[key] = [turn_ms(run, calls[key])]
    for _ in range(rounds - 1):
        for key, run in runs.items():
            found[key].append(turn_ms(run, calls[key]))
    return {key: statistics.median(times) for key, times in found.items()}


def measure(products: Counter[Product], step: Run, rounds: int) -> dict[str, Any]:
    """Milliseconds of a step, and of its products in XLA and in torch."""
    nothing = Product("f32", (1, 1), (1, 1), ((), ()), ((1,), (0,)))
    runs: dict[Any, Run] = {"step": step, "nothing": in_xla(nothing)["xla"]}
    for product in products:
        runs |= {(product, way): run for way, run in in_xla(product).items()}
        runs[product, "torch"] = in_torch(product)
    ms = medians(runs, rounds)
    sums = {"xla": 0.0, "torch": 0.0}
    for product, count in products.items():
        found = {way: ms[product, way] - ms["nothing"] for way in WAYS if (product, way) in ms}
        ways = {way: took / IN_ONE for way, took in found.items()}
        way = min(ways, key=lambda way: ways[way])
        told = {"count": count, "xla_ms": ways[way], "way": way, "torch_ms": ms[product, "torch"]}
        print(json.dumps({"product": str(product), **rounded(told)}), flush=True)
        sums["xla"] += count * ways[way]
        sums["torch"] += count * ms[product, "torch"]
    return rounded(
        {
            "products": products.total(),
            "eager_ms": ms["step"],
            "xla_ms": sums["xla"],
            "torch_ms": sums["torch"],
            "xla / eager": sums["xla"] / ms["step"],
            "torch / eager": sums["torch"] / ms["step"],
        }
    )


def rounded(figures: Mapping[str, Any]) -> dict[str, Any]:
    return {k: round(v, 4) if isinstance(v, float) else v for k, v in figures.items()}


def table(found: Mapping[str, Mapping[str, Any]]) -> str:
    """Markdown: milliseconds, and in brackets the shares of eager torch's step."""
    lines = ["| model | eager step | XLA's products | torch's products |", "|---|---|---|---|"]
    for model, f in found.items():
        shares = (f"{f[f'{who}_ms']:.1f} ({f[f'{who} / eager']:.2f})" for who in ("xla", "torch"))
        lines.append(f"| {model} | {f['eager_ms']:.1f} | {' | '.join(shares)} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = ", ".join(bench_models.MODELS)
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"{names} (gpt, lstm)")
    parser.add_argument("--rounds", type=int, default=10, help="turns of each product (10)")
    options = parser.parse_args(arguments)
    if unknown := sorted({*options.models} - {*bench_models.MODELS}):
        parser.error(f"no such model: {', '.join(unknown)}")
    jax.config.update("jax_platforms", "cpu")
    found = {}
    for model in options.models or MODELS:
        training, nothing = bench_models.MODELS[model], bench_models.nothing
        step = bench_models.torch_step(training, "cpu", nothing)
        found[model] = measure(products_of(compiled_step(model)), step, options.rounds)
        print(json.dumps({"bench": "products", "model": model, **found[model]}), flush=True)
    print(table(found))


if __name__ == "__main__":
    main()
