"""What a step would need and what would bound it, from the facts of its programs. Pure.

The time is the roofline's: the longest of computing at the chip's peak, moving what the compiler
counts from and to HBM, and sending what collectives send. All of them at once, at full speed: no
step is shorter than that, and a real one is longer.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from torch_xdist.launcher.rehearsal.chips import Chip

# The compiler's words where a program needs more than there is.
_TOO_MUCH = re.compile(r"(?:memory required[^(]*\(|Used )([\d.]+)([KMGT])")
_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
# What a rank sends of an array of one byte in a group of n ranks.
_SENT = {
    "all-reduce": lambda n: 2 * (n - 1) / n,
    "all-gather": lambda n: (n - 1) / n,
    "reduce-scatter": lambda n: (n - 1) / n,
    "all-to-all": lambda n: (n - 1) / n,
}


class Bound(NamedTuple):
    """How long something takes at least, and why: "compute", "HBM" or "ICI"."""

    seconds: float
    by: str
    parts: dict[str, float]


class Job(NamedTuple):
    """What was found of a job on one topology.

    Attributes:
        step: the programs of the last step, with how often each runs in it.
        flops: of a step on one device.
        mfu: of the chip's peak, at the roofline's time.
        needed_bytes: of the program that needs most; worst is that program's number, from 0.
        refused: numbers of programs that the compiler refuses, but for memory.
    """

    step: list[tuple[int, int]]
    bound: Bound
    flops: float
    mfu: float
    needed_bytes: float
    worst: int
    refused: list[int]
    fits: bool


def needed_bytes(found: Mapping[str, Any]) -> float:
    """The HBM that a device must have for a program, with what lies there besides."""
    sizes = found["bytes"]
    too_much = _TOO_MUCH.search(found["words"])
    if too_much is not None:
        return float(too_much[1]) * _UNITS[too_much[2]] + sizes["held"]
    names = "arguments", "results", "temporaries", "held"
    return float(sum(sizes.get(name, 0) for name in names) - sizes.get("aliased", 0))


def is_refused(found: Mapping[str, Any]) -> bool:
    """Whether a program cannot be compiled, for another reason than memory."""
    return found["outcome"] != "ok" and _TOO_MUCH.search(found["words"]) is None


def sent_bytes(exchange: Mapping[str, Any]) -> float:
    """What a rank sends in some equal collectives."""
    share = _SENT.get(exchange["kind"], lambda _: 1.0)(max(exchange["ranks"], 1))
    return float(exchange["bytes"] * exchange["count"] * share)


def bound(found: Mapping[str, Any], chip: Chip) -> Bound:
    """The roofline of one run of a program."""
    sent = sum(map(sent_bytes, found["collectives"]))
    parts = {
        "compute": found["flops"] / chip.flops,
        "HBM": found["accessed_bytes"] / chip.hbm_rate,
        "ICI": sent / chip.link_rate,
    }
    by = max(parts, key=lambda name: parts[name])
    return Bound(parts[by], by, parts)


def of_job(programs: Sequence[Mapping[str, Any]], chip: Chip) -> Job:
    """What the programs of a job come to; there is at least one."""
    step = _last_step(programs)
    bounds = [(bound(programs[number], chip), runs) for number, runs in step]
    seconds = sum(one.seconds * runs for one, runs in bounds)
    parts = {
        name: sum(one.parts[name] * runs for one, runs in bounds)
        for name in ("compute", "HBM", "ICI")
    }
    longest = max(bounds, key=lambda pair: pair[0].seconds * pair[1])[0]
    flops = sum(programs[number]["flops"] * runs for number, runs in step)
    needs = [*map(needed_bytes, programs)]
    worst = max(range(len(needs)), key=needs.__getitem__)
    return Job(
        step=step,
        bound=Bound(seconds, longest.by, parts),
        flops=flops,
        mfu=flops / (seconds * chip.flops) if seconds else 0.0,
        needed_bytes=needs[worst],
        worst=worst,
        refused=[n for n, found in enumerate(programs) if is_refused(found)],
        fits=needs[worst] <= chip.usable_bytes,
    )


def _last_step(programs: Sequence[Mapping[str, Any]]) -> list[tuple[int, int]]:
    """The programs of the last step that ran any, and how often each ran in it."""
    last = max((int(step) for found in programs for step in found["runs"]), default=0)
    runs = [(number, found["runs"].get(str(last), 0)) for number, found in enumerate(programs)]
    return [(number, count) for number, count in runs if count] or [(len(programs) - 1, 1)]
