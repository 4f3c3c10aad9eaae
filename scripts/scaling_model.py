#!/usr/bin/env python
"""What a job costs beside its training, at 8 to 65,536 ranks: measured constants times counts.

    scripts/scaling_model.py [--plot docs/scaling.svg]

Prints the two tables of `docs/scaling.md`, and draws its plot. Every constant is measured by the
command beside it; every count is that of the code named beside it. A host has 8 ranks. Nothing
here was measured at the sizes it speaks of, but where the page says so.
"""

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torch_xdist.collectives.mesh import signs
from torch_xdist.collectives.shared_memory import algorithms
from torch_xdist.launcher.facts.settings import Timeouts
from torch_xdist.launcher.head import head, pace

RANKS = (8, 256, 4096, 65536)
PER_HOST = 8
PAYLOAD_MB, TENSORS, REDUCED_MB, LINK_MB_PER_S = 1.0, 300, 100.0, 1250.0
_MANY = "bench_many_hosts.py"
_OTHERS = "measure_constants.py"
# Of what goes through TLS.
_TLS = "2026-11-26"


@dataclass(frozen=True, slots=True)
class Constant:
    """A measured number; `name` ends in its unit."""

    name: str
    value: float
    meaning: str
    script: str
    date: str = "2026-11-25"


CONSTANTS = {
    one.name: one
    for one in (
        Constant("start_ms", 0.37, "the head starts an agent over ssh", _OTHERS),
        Constant("hello_ms", 5.4, "the head meets a host, from port to orders", _MANY, _TLS),
        Constant("order_bytes", 973, "what a host is told of one rank", _OTHERS),
        Constant("join_ms", 1.8, "a rank joins JAX's coordination service", _OTHERS),
        Constant("beat_us", 350, "the head hears the beats of a host", _MANY, _TLS),
        Constant("judge_us", 2.0, "the head looks at a rank", _OTHERS),
        Constant("send_us", 23, "the head orders a host to do something", _OTHERS, _TLS),
        Constant("line_us", 0.80, "the head shows a line", _OTHERS),
        Constant("put_us", 156, "the coordination service takes a value", _OTHERS),
        Constant("get_us", 159, "the coordination service gives one", _OTHERS),
        Constant("wire_us", 10.9, "a rank tells one other host of a barrier", _OTHERS),
        Constant("compile_s", 1.30, "a GPT's step is compiled", "bench_cache.py", "2026-11-24"),
        Constant("plan_us", 6.7, "a part of a tensor in a checkpoint's plan", _OTHERS),
        Constant("plan_bytes", 217, "the same, as a rank sends it", _OTHERS),
    )
}


def of(name: str) -> float:
    """A constant in seconds, where it is a time."""
    value, unit = CONSTANTS[name].value, name.rpartition("_")[2]
    return value * {"ms": 1e-3, "us": 1e-6}.get(unit, 1.0)


def hosts(ranks: int) -> int:
    return math.ceil(ranks / PER_HOST)


def look_s(ranks: int) -> float:
    """The head looks at all ranks once."""
    return ranks * of("judge_us")


def look_every_s(ranks: int) -> float:
    """How often it does where nothing but beats has come."""
    return look_s(ranks) + min(pace._MOST_S, look_s(ranks) / pace._SHARE)


def beats_core(ranks: int) -> float:
    return hosts(ranks) / Timeouts().beat_s * of("beat_us") + look_s(ranks) / look_every_s(ranks)


def verdict_s(ranks: int) -> float:
    """A look may just be over, then half of the time is not the judge's; what fails of the same
    cause is collected; and all hosts hear it."""
    waits_s = look_s(ranks) * (1 / pace._NEWS_SHARE - 1) + head._COLLECT_S
    return waits_s + look_s(ranks) + hosts(ranks) * of("send_us")


def signs_core(ranks: int) -> float:
    return ranks / signs.every_s(ranks) * of("put_us")


def reduce_s(ranks: int) -> float:
    """Between hosts: a message to each other host in each round, and the bytes on a link."""
    others = hosts(ranks) - 1
    rounds = math.ceil(REDUCED_MB * 1e6 / algorithms.CHUNK_BYTES) + 2
    sent_mb = 2 * REDUCED_MB * others / hosts(ranks)
    return rounds * others * of("wire_us") + sent_mb / LINK_MB_PER_S


@dataclass(frozen=True, slots=True)
class Cost:
    """What something costs a job of some ranks."""

    name: str
    unit: str
    formula: str
    place: str
    cost: Callable[[int], float]


COSTS = (
    Cost(
        *("launch: start the agents", "s of the head", "hosts x start_ms"),
        "launcher/head/head.py `run`",
        lambda n: hosts(n) * of("start_ms"),
    ),
    Cost(
        *("rendezvous: meet the hosts", "s of the head", "hosts x hello_ms"),
        "launcher/head/start.py `greet`, `reach`",
        lambda n: hosts(n) * of("hello_ms"),
    ),
    Cost(
        *("rendezvous: orders", "MB from the head", "ranks x order_bytes"),
        "launcher/facts/placement.py `rank_orders`",
        lambda n: n * of("order_bytes") / 1e6,
    ),
    Cost(
        *(f"a function of {PAYLOAD_MB:g} MB", "GB from the head", "hosts x its size"),
        "launcher/head/head.py `_begin`",
        lambda n: hosts(n) * PAYLOAD_MB / 1e3,
    ),
    Cost(
        *("ranks join the coordination service", "s", "ranks x join_ms"),
        "collectives/mesh/coordination.py `join`",
        lambda n: n * of("join_ms"),
    ),
    Cost(
        *("beats", "share of a core", "hosts / 2 s x beat_us + looks"),
        "launcher/digest.py, launcher/head/sight.py",
        beats_core,
    ),
    Cost(
        *("a look at all ranks", "s", "ranks x judge_us"),
        "launcher/head/head.py `_decide`",
        look_s,
    ),
    Cost(
        *(
            "between two looks, at most",
            "s",
            f"a look / {pace._SHARE}, at most {pace._MOST_S:.0f} s after it",
        ),
        "launcher/head/pace.py",
        look_every_s,
    ),
    Cost(
        *("verdict on a failure", "s", "1 s at most + 2 looks + hosts x send_us"),
        "launcher/head/pace.py, `Hosts.send`",
        verdict_s,
    ),
    Cost(
        *("logs, a line a second of each rank", "share of a core", "ranks x line_us"),
        "launcher/head/inbox.py, viewing/screen.py",
        lambda n: n * of("line_us"),
    ),
    Cost(
        *("agreement on a new program", "s", "ranks x (put_us + 2 get_us)"),
        "collectives/mesh/agreement.py",
        lambda n: n * (of("put_us") + 2 * of("get_us")),
    ),
    Cost(
        *("signs of life", "share of a core", "ranks / every_s x put_us"),
        "collectives/mesh/signs.py `every_s`",
        signs_core,
    ),
    Cost(
        *("CPU ranks: a small all-reduce", "ms", "(hosts - 1) x wire_us"),
        "collectives/hosts/wide_segment.py `arrive_with`",
        lambda n: (hosts(n) - 1) * of("wire_us") * 1e3,
    ),
    Cost(
        *(f"CPU ranks: an all-reduce of {REDUCED_MB:g} MB", "s", "rounds x that + bytes / link"),
        "collectives/hosts/reductions.py `all_reduce`",
        reduce_s,
    ),
    Cost(
        *("compilation, a cache for each host", "s of all hosts' cores", "hosts x compile_s"),
        "xdist/core/disk_cache/turns.py",
        lambda n: hosts(n) * of("compile_s"),
    ),
    Cost(
        *(f"plan of a sharded checkpoint, {TENSORS} tensors", "s of one rank"),
        *("ranks x tensors x plan_us", "xdist/sharded_checkpoint/planners.py"),
        lambda n: n * TENSORS * of("plan_us"),
    ),
    Cost(
        *("the same", "GB to that rank", "ranks x tensors x plan_bytes"),
        "xdist/sharded_checkpoint/planners.py",
        lambda n: n * TENSORS * of("plan_bytes") / 1e9,
    ),
)


def number(value: float) -> str:
    """With two digits that count: "0.012", "3.4", "120", "12,000"."""
    if value == 0:
        return "0"
    digits = 1 - math.floor(math.log10(abs(value)))
    rounded = round(value, digits)
    return f"{rounded:,.{max(0, digits)}f}"


def constants_table() -> str:
    lines = [
        "| constant | value | what it is | measured by `scripts/` | on |",
        "|---|---|---|---|---|",
    ]
    for one in CONSTANTS.values():
        value = f"{number(one.value)} {one.name.rpartition('_')[2]}"
        row = (f"`{one.name}`", value, one.meaning, f"`{one.script}`", one.date)
        lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines)


def costs_table() -> str:
    sizes = " | ".join(f"{ranks:,}" for ranks in RANKS)
    lines = [f"| cost, unit | {sizes} | formula | where it is so |", "|---|" + "---|" * 6]
    for one in COSTS:
        values = " | ".join(number(one.cost(ranks)) for ranks in RANKS)
        lines.append(f"| {one.name}, {one.unit} | {values} | {one.formula} | {one.place} |")
    return "\n".join(lines)


def draw(path: Path) -> None:
    """The costs that grow, over the number of ranks."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "scaling", "svg.fonttype": "none"})
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(10, 4.2), layout="constrained")
    sizes = [8 * 2**power for power in range(14)]
    for side, wanted in zip(axes, ("s", "share of a core"), strict=True):
        shown = [
            one for one in COSTS if one.unit == wanted or (wanted == "s" and "s of" in one.unit)
        ]
        for one in shown:
            side.plot(sizes, [max(one.cost(n), 1e-6) for n in sizes], label=one.name, lw=1.2)
        side.set(xscale="log", yscale="log", xlabel="ranks", ylabel=wanted, ylim=(1e-4, None))
        side.grid(alpha=0.3)
        side.legend(fontsize=6)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--plot", type=Path, help="where the plot goes (.svg)")
    asked = parser.parse_args()
    print(constants_table(), costs_table(), sep="\n\n")
    if asked.plot:
        draw(asked.plot)


if __name__ == "__main__":
    main()
