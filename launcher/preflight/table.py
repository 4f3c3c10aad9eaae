"""What `xla-run check` prints: a row per host, then a line per trouble, then the verdict."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch_xdist.launcher.preflight.inquiry import Answer
from torch_xdist.launcher.preflight.judge_ways import slower
from torch_xdist.launcher.preflight.trouble import Trouble, others_text

_NOTHING = "-"
_MARK = "!"
# How a marked cell is shown, and the word before a warning.
Style = Callable[[str], str]


def text(
    answers: Sequence[Answer],
    troubles: Sequence[Trouble],
    *,
    marked: Style = str,
    warned: Style = str,
) -> str:
    """The whole of it.

    Args:
        marked, warned: colour a cell with an error or a warning; the widths are made without.
    """
    lines = [*_rows(answers, troubles, marked, warned), ""]
    lines += _lines(troubles)
    return "\n".join([*lines, verdict(answers, troubles)])


def _lines(troubles: Sequence[Trouble]) -> list[str]:
    """One per trouble; what is the same on several hosts is told once."""
    alike: dict[tuple[bool, str], list[str]] = {}
    for one in troubles:
        own = f"host {one.host}: "
        text = one.text.removeprefix(own)
        # What does not begin with its host names others, and stands alone.
        alike.setdefault((one.is_warning, text), []).extend([one.host] * (text != one.text))
    return [
        "warning: " * is_warning + (f"{others_text(names)}: " if names else "") + text
        for (is_warning, text), names in alike.items()
    ]


def verdict(answers: Sequence[Answer], troubles: Sequence[Trouble]) -> str:
    """The last line: whether a job could run."""
    errors = sum(not one.is_warning for one in troubles)
    warnings = len(troubles) - errors
    count = len(answers)
    where = f"{count} hosts" if count > 1 else f"host {answers[0].name}"
    more = f"; {warnings} warning{'s' * (warnings > 1)}" if warnings else ""
    if not errors:
        return f"a job can run on {where}{more}"
    return f"no job can run on {where}: {errors} error{'s' * (errors > 1)}{more}"


def _rows(
    answers: Sequence[Answer], troubles: Sequence[Trouble], marked: Style, warned: Style
) -> Iterator[str]:
    columns = {
        title: [cell(answer) for answer in answers] for title, cell in _columns(answers).items()
    }
    shown = {title: cells for title, cells in columns.items() if set(cells) != {_NOTHING}}
    levels = {(one.host, one.column): one.is_warning for one in reversed(troubles)}
    table = [[*shown]]
    for index, answer in enumerate(answers):
        marks = [levels.get((answer.name, title.lower())) for title in shown]
        table.append(
            [
                cells[index] if mark is None else f"{_MARK}{cells[index]}"
                for cells, mark in zip(shown.values(), marks, strict=True)
            ]
        )
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for number, row in enumerate(table):
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        if number:
            answer = answers[number - 1]
            styles = [levels.get((answer.name, title.lower())) for title in shown]
            cells = [
                cell if level is None else warned(cell) if level else marked(cell)
                for cell, level in zip(cells, styles, strict=True)
            ]
        yield "  ".join(cells).rstrip()


def _columns(answers: Sequence[Answer]) -> dict[str, Callable[[Answer], str]]:
    """Titles in order, each with what makes its cell; one that says nothing anywhere is left out.

    In lower case a title is the column that troubles name.
    """
    return {
        "HOST": lambda one: one.name,
        "LOGIN": lambda one: _login(one, len(answers)),
        "PYTHON": lambda one: _version(one, "python"),
        "TORCH": lambda one: _version(one, "torch"),
        "JAX": lambda one: _version(one, "jax"),
        "LIBTPU": lambda one: _version(one, "libtpu"),
        "XDIST": lambda one: _version(one, "torch-xdist"),
        "CODE": _code,
        "CLOCK": _clock,
        "DEVICES": _devices,
        "NET": lambda one: _net(one, answers),
        "DISK": lambda one: _size(one, "disk"),
        "SHM": lambda one: _size(one, "shared_memory"),
        "FILES": _files,
    }


def _part(one: Answer, name: str) -> Any:
    return (one.facts or {}).get(name) or {}


def _login(one: Answer, count: int) -> str:
    if one.came_s is not None:
        return f"{one.came_s:.1f} s"
    if one.gone:
        return "failed"
    return _NOTHING if count == 1 and one.facts is not None else "no answer"


def _version(one: Answer, package: str) -> str:
    return _part(one, "versions").get(package) or _NOTHING


def _code(one: Answer) -> str:
    code = _part(one, "code")
    if not code or "why_not" in code:
        return _NOTHING
    count = len(code["files"])
    return f"{count} file{'s' * (count != 1)}{'' if code['whole'] else '+'}"


def _clock(one: Answer) -> str:
    if one.clock_s is None:
        return _NOTHING
    return "0 s" if abs(one.clock_s) < 0.05 else f"{one.clock_s:+.1f} s"


def _devices(one: Answer) -> str:
    host = _part(one, "host")
    if not host:
        return _NOTHING
    found = [
        f"{count} {noun}"
        for kind, noun in (("TPU", "TPU"), ("CUDA", "GPU"))
        if (count := host["found"]["counts"].get(kind))
    ]
    return " ".join(found) or f"{len(host['cores'])} cores"


def _net(one: Answer, answers: Sequence[Answer]) -> str:
    """The round trip and the slower direction between this host and the one that measured."""
    index = answers.index(one)
    for first in answers:
        rate = slower(first, index)
        if rate is not None:
            return f"{first.rates[index]['round_trip_ms']:.2f} ms {_bytes(rate)}/s"
    ways = [way["ms"] for way in (one.reached or {}).values() if "ms" in way]
    return f"{max(ways):.2f} ms" if ways else _NOTHING


def _size(one: Answer, part: str) -> str:
    found = _part(one, part)
    return _bytes(found["free_bytes"]) if found else _NOTHING


def _files(one: Answer) -> str:
    limits = _part(one, "limits")
    return str(limits["open_files"] or "unlimited") if limits else _NOTHING


def _bytes(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.5:
            return f"{count:.0f} {unit}" if count >= 9.95 else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.0f} TB" if count >= 9.95 else f"{count:.1f} TB"
