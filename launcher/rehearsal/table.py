"""What was found, as text. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from torch_xdist.launcher.rehearsal import estimate, remedies
from torch_xdist.launcher.rehearsal.chips import CHIPS
from torch_xdist.launcher.rehearsal.topologies import Slice

_OTHERS = "bfloat16; a larger chip"


class Result(NamedTuple):
    """A topology, and what the script's process wrote of it."""

    slice: Slice
    told: Mapping[str, Any]

    @property
    def job(self) -> estimate.Job:
        """What it comes to."""
        return estimate.of_job(self.told["programs"], CHIPS[self.slice.kind])

    @property
    def remedies(self) -> list[remedies.Remedy]:
        """What would make the program fit that needs most; none where it does."""
        if self.job.fits:
            return []
        worst, chip = self.told["programs"][self.job.worst], CHIPS[self.slice.kind]
        return remedies.of_program(worst, chip.usable_bytes, self.slice.world_size)

    @property
    def is_fine(self) -> bool:
        """Whether it compiles, and fits."""
        return self.job.fits and not self.job.refused


def text(results: Sequence[Result]) -> str:
    """The tables of programs, then one of the topologies, then what does not fit."""
    parts = [_programs(result) for result in results]
    parts.append(_topologies(results))
    parts += [part for result in results if (part := _troubles(result))]
    return "\n\n".join(parts)


def _programs(result: Result) -> str:
    heads = (
        f"{result.slice.title}, program|operators|compiled in|arguments|results|temporaries"
        "|HBM|TFLOP|moved|bound|runs"
    )
    rows: list[Sequence[str]] = [heads.split("|")]
    last = dict(result.job.step)
    for number, found in enumerate(result.told["programs"]):
        sizes, chip = found["bytes"], CHIPS[result.slice.kind]
        bound = estimate.bound(found, chip)
        is_ok = found["outcome"] == "ok"
        rows.append(
            (
                f"{number + 1} {found['where']}",
                str(found["operators"]),
                f"{found['seconds']:.1f} s" if is_ok else found["outcome"],
                *(size(sizes.get(name, 0)) for name in ("arguments", "results", "temporaries")),
                size(estimate.needed_bytes(found)),
                f"{found['flops'] / 1e12:.3g}",
                size(found["accessed_bytes"]),
                f"{seconds(bound.seconds)} {bound.by}" if is_ok else "-",
                f"{last[number]} a step" if number in last else "before",
            )
        )
    lines = [_aligned(rows)]
    for number, found in enumerate(result.told["programs"]):
        lines += [f"  program {number + 1}: {_exchange(one)}" for one in found["collectives"]]
        for kind, count in found["across_slices"].items():
            lines.append(f"  program {number + 1}: {count} x {kind} between slices, not timed")
    return "\n".join(lines)


def _exchange(one: Mapping[str, Any]) -> str:
    axes = f" along {'+'.join(one['axes'])}" if one["axes"] else ""
    how = "synchronous"
    if one["async"]:
        fusions = "1 fusion" if one["fusions"] == 1 else f"{one['fusions']} fusions"
        how = f"asynchronous, overlapped with {fusions if one['fusions'] else 'nothing'}"
    over = f"{one['ranks']} ranks" if one["ranks"] else "some ranks"
    return f"{one['count']} x {one['kind']} of {size(one['bytes'])} over {over}{axes}, {how}"


def _topologies(results: Sequence[Result]) -> str:
    heads = "topology|ranks|HBM|of|fits|TFLOP a step|step >=|bound|MFU <="
    rows: list[Sequence[str]] = [heads.split("|")]
    for result in results:
        job, chip = result.job, CHIPS[result.slice.kind]
        fits = "refused" if job.refused else ("yes" if job.fits else "NO")
        step = ["-"] * 4
        if job.bound.seconds:
            flops = f"{job.flops / 1e12:.3g}"
            step = [flops, seconds(job.bound.seconds), job.bound.by, f"{job.mfu:.0%}"]
        needed, usable = size(job.needed_bytes), size(chip.usable_bytes)
        rows.append((result.slice.title, str(result.slice.world_size), needed, usable, fits, *step))
    return _aligned(rows)


def _troubles(result: Result) -> str:
    job, programs = result.job, result.told["programs"]
    lines = []
    for number in job.refused:
        words = programs[number]["words"].splitlines() or [""]
        lines.append(
            f"{result.slice.title}: program {number + 1} ({programs[number]['where']}) is"
            f" {programs[number]['outcome']}: {words[0][:300]}"
        )
    if not job.fits:
        chip, worst = CHIPS[result.slice.kind], programs[job.worst]
        lines.append(
            f"{result.slice.title}: does not fit: {size(job.needed_bytes)} of"
            f" {size(chip.usable_bytes)}, in program {job.worst + 1} ({worst['where']})"
        )
        for one in worst["largest"]:
            times = f"{one['count']} x " if one["count"] > 1 else ""
            lines.append(
                f"  {times}{size(one['bytes'])} {one['type']} {one['what']} ({one['where']})"
            )
        lines.append("  what helps, estimated:")
        for one in result.remedies:
            fits = "fits" if one.needed_bytes <= chip.usable_bytes else "does not fit alone"
            lines.append(f"    {one.what}: about {size(one.needed_bytes)}, {fits}")
        lines.append(f"    besides: {_OTHERS}")
    return "\n".join(lines)


def size(count: float) -> str:
    """Bytes in four digits."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1000:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.4g} GiB"


def seconds(value: float) -> str:
    """A time in three digits."""
    for unit, share in (("s", 1.0), ("ms", 1e-3)):
        if value >= share:
            return f"{value / share:.3g} {unit}"
    return f"{value * 1e6:.3g} us"


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows
    )
