#!/usr/bin/env python
"""The table and the plot of docs/benchmarks.md: what was measured, beside what is aimed at.

    .venv/bin/python scripts/bench_table.py measure [NAME ...]   runs the benchmarks, one by one
    .venv/bin/python scripts/bench_table.py show [--check]       the page's table and its plot

`measure` keeps the JSON lines of each benchmark in docs/benchmarks.json, with its command, the day,
the versions, and the load of the machine before it. `show` writes the table into docs/benchmarks.md
and the plot beside it; with `--check` it ends with 1 where the page shows something else. The
torch_xla column of models needs XDIST_PEER_PYTHON, see bench_models.py.
"""

import datetime
import importlib.metadata
import json
import os
import shlex
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import click

ROOT = Path(__file__).resolve().parent.parent
KEPT = ROOT / "docs/benchmarks.json"
PAGE = ROOT / "docs/benchmarks.md"
PLOT = ROOT / "docs/benchmarks.svg"
BEGIN, END = "<!-- made by scripts/bench_table.py -->", "<!-- end -->"

Lines = Sequence[Mapping[str, Any]]

COMMANDS = {
    "models": "bench_models.py --rounds 6",
    "steps": "bench_steps.py --what step --rounds 12",
    "host": "bench_steps.py --what host --rounds 60",
    "replay": "bench_steps.py --what replay --rounds 60",
    "busy": "bench_busy.py",
    "depth": "bench_depth.py --rounds 1",
    "ops": "bench_ops.py",
    "cache": "bench_cache.py",
    "memory": "bench_memory.py --resident",
    "transfers": "bench_transfers.py",
    "loader": "bench_loader.py",
    "launch": "bench_launch.py --rounds 5",
    "collectives": "bench_collectives.py --ranks 2,4,8 --mb 100",
    "scaling": "bench_scaling.py --rounds 11",
}


class Found(NamedTuple):
    """A figure, and between which two it lay where it was taken several times."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Aim:
    """One row of the table.

    Attributes:
        of: the benchmark that measures it.
        limit: what the figure is to be at most.
        find: the figure in the benchmark's lines; a LookupError where it is not among them.
    """

    what: str
    of: str
    limit: float
    find: Callable[[Lines], Found]
    unit: str = ""


def only(lines: Lines, **wanted: Any) -> Mapping[str, Any]:
    """The line with these fields.

    Raises:
        LookupError: no line has them.
    """
    for line in lines:
        if all(line.get(name) == value for name, value in wanted.items()):
            return line
    raise LookupError(f"no line with {wanted}")


def field(name: str, **wanted: Any) -> Callable[[Lines], Found]:
    """What finds a field of the line with those fields."""
    return lambda lines: Found(only([x for x in lines if name in x], **wanted)[name])


def of_peer(model: str, peer: str, figure: str) -> Callable[[Lines], Found]:
    """Ours / the peer's; of steps with our quartiles / the peer's median."""

    def find(lines: Lines) -> Found:
        ours = only(lines, bench="models", model=model, peer="xdist")
        theirs = only(lines, bench="models", model=model, peer=peer)[figure]
        around = ours["quartiles_ms"] if figure == "step_ms" else ()
        return Found(ours[figure] / theirs, *(side / theirs for side in around))

    return find


def of_all_operators(lines: Lines) -> Found:
    """The median of the ratios of all operators, with their quartiles."""
    low, median, high = statistics.quantiles((x["ratio"] for x in lines if "ratio" in x), n=4)
    return Found(median, low, high)


def slowest_operator(lines: Lines) -> Found:
    """The largest ratio of an operator."""
    return Found(max(line["ratio"] for line in lines if "ratio" in line))


def of_busy(way: str) -> Callable[[Lines], Found]:
    """Milliseconds of a step in a loop / of its program alone."""

    def find(lines: Lines) -> Found:
        line = only(lines, way=way)
        return Found(line["step_ms"] / line["device_ms"])

    return find


def of_cache(model: str) -> Callable[[Lines], Found]:
    """Seconds of a start with a full cache / with an empty one."""

    def find(lines: Lines) -> Found:
        line = only(lines, model=model)
        return Found(line["ratio"], *line["from, to"])

    return find


def ddp_over_ours(model: str) -> Callable[[Lines], Found]:
    """The efficiency of torch's DDP / ours."""
    return lambda lines: Found(1 / only(lines, model=model, side=None)["ours_to_ddp"])


NAMES = {"mnist": "MNIST CNN", "resnet18": "ResNet-18", "gpt": "GPT", "lstm": "LSTM"}


def aims_of_models() -> Iterator[Aim]:
    """Steps, host time and starts beside the peers."""
    for model, name in NAMES.items():
        eager = 1.0 if model in ("gpt", "lstm") else 1.25
        yield Aim(f"{name}: step / eager", "models", eager, of_peer(model, "eager", "step_ms"))
    yield Aim("GPT: step / JAX by hand", "models", 1.0, of_peer("gpt", "jax", "step_ms"))
    for figure, limit, words in (
        ("step_ms", 0.8, "step"),
        ("host_ms", 0.5, "host's part of a step"),
        ("first_three_s", 0.5, "first three steps"),
    ):
        for model in ("mnist", "resnet18", "gpt"):
            find = of_peer(model, "torch_xla", figure)
            yield Aim(f"{NAMES[model]}: {words} / torch_xla 2.9", "models", limit, find)


def aims() -> list[Aim]:
    """All rows, in the order of the page."""
    found = [*aims_of_models(), *aims_of_the_core(), *aims_of_memory()]
    found.append(Aim("rows of a loader / a plain DataLoader", "loader", 1.0, field("rows_ratio")))
    overlap = field("overlap_ratio")
    found.append(Aim("a step beside a loader as slow / alone", "loader", 1.05, overlap))
    launch = of_launch("xmp.spawn, script imports torch and torch_xla")
    found.append(Aim("start of 4 ranks to the first sum", "launch", 3.0, launch, "s"))
    for ranks in (2, 4, 8):
        words = f"all-reduce of 100 MB, {ranks} ranks / gloo"
        found.append(Aim(words, "collectives", 0.3, field("ours_to_gloo", ranks=ranks)))
    for model, name in (("digits", "digits CNN"), ("resnet18", "ResNet-18"), ("gpt", "GPT")):
        words = f"{name}: DDP's efficiency on two ranks / ours"
        found.append(Aim(words, "scaling", 1.0, ddp_over_ours(model)))
    return found


def aims_of_the_core() -> Iterator[Aim]:
    """Recording, replaying, single operators, programs on disk."""
    in_one = field("device_to_jax")
    yield Aim("GPT: step / JAX by hand, in one process", "steps", 1.0, in_one)
    for adamw in ("default", "foreach=False"):
        each = field("us_per_operator", adamw=adamw)
        yield Aim(f"recording, per torch operator, AdamW {adamw}", "host", 5.0, each, "us")
    replayed = field("median_ms", step="replayed")
    yield Aim("host time of a replayed step", "replay", 0.4, replayed, "ms")
    for way, words in (("ahead", "a loop"), ("pure", "a loop of replayed steps")):
        yield Aim(f"{words}, 2 ms each / their program alone", "busy", 1.11, of_busy(way))
    reading = field("item_to_ahead", way="item")
    yield Aim("the same loop with loss.item() in each step / without", "busy", 1.05, reading)
    for form in ("plain", "scan_layers"):
        deep = field("deepest_to_shallowest", form=form)
        yield Aim(f"compiling 48 layers / 6, {form}", "depth", 3.0, deep)
    yield Aim("operators / eager, median", "ops", 1.1, of_all_operators)
    yield Aim("operators / eager, slowest", "ops", 2.0, slowest_operator)
    for model in ("mnist", "resnet18", "gpt"):
        words = f"{NAMES[model]}: start with a full cache / an empty one"
        yield Aim(words, "cache", 0.2, of_cache(model))


MEMORY = {"gpt2": "GPT-2", "resnet50": "ResNet-50", "vit_b": "ViT", "bert_large": "BERT"}
TRANSFERS = {
    "a model of 1024 MB to the device / its clone": 1.0,
    "its state_dict to the host / a clone of 1024 MB": 1.0,
    "a batch of 64 small tensors / one of all their numbers": 2.0,
}


def aims_of_memory() -> Iterator[Aim]:
    """What a step holds, and what it takes to bring tensors there and back."""
    for case, name in MEMORY.items():
        beside = field("ratio", case=f"{case} / JAX by hand")
        yield Aim(f"{name}: memory / JAX by hand", "memory", 1.05, beside)
    for case, limit in TRANSFERS.items():
        yield Aim(case, "transfers", limit, field("ratio", case=case))


def of_launch(way: str) -> Callable[[Lines], Found]:
    """The median of a way to start, with its least and most."""

    def find(lines: Lines) -> Found:
        line = only(lines, way=way)
        return Found(line["median_s"], min(line["seconds"]), max(line["seconds"]))

    return find


# ---- measuring ----------------------------------------------------------------------------------


def measured(command: str) -> dict[str, Any]:
    """Run one benchmark: its JSON lines, and where they were taken."""
    load = round(os.getloadavg()[0], 1)
    words = [sys.executable, *shlex.split(f"scripts/{command}")]
    lines = []
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            if line.startswith("{"):
                lines.append(json.loads(line))
    return {
        "command": f"scripts/{command}",
        "date": datetime.date.today().isoformat(),
        "cores": os.cpu_count(),
        "load before": load,
        "versions": {name: importlib.metadata.version(name) for name in ("torch", "jax", "jaxlib")},
        "lines": lines,
    }


def kept() -> dict[str, Any]:
    """What docs/benchmarks.json holds."""
    return dict(json.loads(KEPT.read_text())) if KEPT.exists() else {}


# ---- showing ------------------------------------------------------------------------------------


class Row(NamedTuple):
    """A row of the table: an aim, and what was found, if anything was."""

    aim: Aim
    found: Found | None
    date: str


def rows(runs: Mapping[str, Any]) -> list[Row]:
    """What was found of each aim."""
    made = []
    for aim in aims():
        run = runs.get(aim.of, {})
        try:
            found = aim.find(run["lines"]) if run else None
        except LookupError:
            found = None
        made.append(Row(aim, found, run.get("date", "") if found else ""))
    return made


def number(value: float) -> str:
    """Three digits that count, and no more than two behind the point."""
    return f"{value:.3g}" if value < 1 or value >= 100 else f"{value:.2f}".rstrip("0").rstrip(".")


def table(made: Sequence[Row]) -> str:
    """Markdown: what is measured, its aim, what was found, and whether that is enough."""
    lines = ["| figure | aim, at most | measured | reached | benchmark | date |"]
    lines.append("|---" * 6 + "|")
    for aim, found, date in made:
        unit = f" {aim.unit}" if aim.unit else ""
        told, reached = "not measured", ""
        if found:
            told = number(found.value) + unit
            if found.low is not None and found.high is not None:
                told += f" ({number(found.low)} to {number(found.high)})"
            reached = "yes" if found.value <= aim.limit else "no"
        cells = (aim.what, f"{number(aim.limit)}{unit}", told, reached, f"`{aim.of}`", date)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def commands(runs: Mapping[str, Any]) -> str:
    """Markdown: what each benchmark ran as."""
    lines = ["| benchmark | command | load before | torch, jax |", "|---|---|---|---|"]
    for name, run in runs.items():
        versions = f"{run['versions']['torch']}, {run['versions']['jax']}"
        lines.append(f"| `{name}` | `{run['command']}` | {run['load before']} | {versions} |")
    return "\n".join(lines)


def section(runs: Mapping[str, Any]) -> str:
    """What stands between the two marks of the page."""
    return f"{table(rows(runs))}\n\n{commands(runs)}"


def page_with(page: str, made: str) -> str:
    """The page with another table between its marks."""
    before, rest = page.split(BEGIN)
    return f"{before}{BEGIN}\n{made}\n{rest[rest.index(END) :]}"


def draw(made: Sequence[Row], path: Path) -> None:
    """Every figure / its aim, on one axis: left of the line it is reached."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "benchmarks", "svg.fonttype": "none"})
    from matplotlib import pyplot

    shown = [(row.aim, row.found) for row in made if row.found]
    figure, axes = pyplot.subplots(figsize=(8, 0.2 * len(shown) + 1), layout="constrained")
    for place, (aim, found) in enumerate(shown):
        value, low, high = (side and side / aim.limit for side in found)
        colour = "tab:green" if value is not None and value <= 1 else "tab:red"
        axes.plot(value, place, "o", color=colour, ms=4)
        if low and high:
            axes.plot((low, high), (place, place), color=colour, lw=1)
    axes.axvline(1.0, color="black", lw=0.8)
    axes.set(xscale="log", xlabel="measured / aim", ylim=(len(shown) - 0.5, -0.5))
    axes.set_yticks(range(len(shown)), [aim.what for aim, _ in shown], fontsize=6)
    axes.grid(axis="x", alpha=0.3, which="both")
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


@click.group(help=__doc__)
def main() -> None:
    """See above."""


@main.command()
@click.argument("names", nargs=-1, type=click.Choice([*COMMANDS]))
def measure(names: Sequence[str]) -> None:
    """Run the benchmarks (all, or NAMES) and keep their figures."""
    for name in names or COMMANDS:
        print(f"bench_table: {name}: scripts/{COMMANDS[name]}", flush=True)
        run = measured(COMMANDS[name])
        if not run["lines"]:
            raise click.ClickException(f"{run['command']} printed no figures; nothing is kept")
        found = {**kept(), name: run}
        ordered = {key: found[key] for key in COMMANDS if key in found}
        partial = KEPT.with_suffix(".partial")
        partial.write_text(json.dumps(ordered, indent=1) + "\n")
        partial.replace(KEPT)


@main.command()
@click.option("--check", is_flag=True, help="change nothing; end with 1 if the page is another")
def show(check: bool) -> None:
    """Write the table into docs/benchmarks.md, and the plot beside it."""
    runs, page = kept(), PAGE.read_text()
    made = page_with(page, section(runs))
    if check:
        sys.exit(made != page)
    PAGE.write_text(made)
    draw(rows(runs), PLOT)


if __name__ == "__main__":
    main()
