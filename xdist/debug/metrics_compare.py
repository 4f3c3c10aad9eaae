"""Read a metrics report back into numbers, and compare it with earlier ones."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from torch_xdist.metrics import FALLBACK

_METRIC = re.compile(
    r"Metric: (?P<name>.+)\n"
    r"  TotalSamples: (?P<total>\d+)\n"
    r"  (?:Accumulator|Counter): (?P<accumulator>.+)\n"
    r"(?:  (?!Percentiles).+\n)*"
    r"  Percentiles: (?P<percentiles>.+)\n?"
)
_COUNTER = re.compile(r"Counter: (?P<name>.+)\n  Value: (?P<value>\d+)")
_TIME_PART = re.compile(r"(\d+(?:\.\d+)?)(d|h|ms|m|us|s)")
_SECONDS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6}
_BYTES = re.compile(r"(\d+(?:\.\d+)?)(B|KB|MB|GB|TB|PB)")
# The report counts in 1024s; torch_xla takes its units for decimal ones, and so do baselines.
_MEGABYTES = {"B": 1e-6, "KB": 1e-3, "MB": 1.0, "GB": 1e3, "TB": 1e6, "PB": 1e9}
DEFAULT_CONFIG = {"base_expression": "v <= v_mean + (v_stddev * 2.0)"}


def parse_metrics_report(report: str, dehumanize: bool = True) -> dict[str, Any]:
    """The numbers of a report by name.

    Keys are `CompileTime__TotalSamples`, `CompileTime__Accumulator_sec`,
    `CompileTime__Percentile_50_sec`, `InboundData__Accumulator_mb` (10^6 bytes) and
    `MarkStep__Value`, an int. With `dehumanize=False` the values of metrics are pairs (number, text
    as printed).
    """
    found: dict[str, Any] = {}

    def put(name: str, text: str) -> None:
        number, unit = read_number(text)
        found[name + unit] = number if dehumanize else (number, text)

    for match in _METRIC.finditer(report):
        name = match["name"]
        put(f"{name}__TotalSamples", match["total"])
        put(f"{name}__Accumulator", match["accumulator"])
        for mark in match["percentiles"].split("; "):
            percent, _, text = mark.partition("%=")
            put(f"{name}__Percentile_{percent}", text)
    for match in _COUNTER.finditer(report):
        found[f"{match['name']}__Value"] = int(match["value"])
    return found


def read_number(text: str) -> tuple[float, str]:
    """A printed value as (seconds, "_sec"), (10^6 bytes, "_mb") or (number, "")."""
    if match := _BYTES.fullmatch(text):
        return float(match[1]) * _MEGABYTES[match[2]], "_mb"
    parts = _TIME_PART.findall(text)
    if parts and "".join(number + unit for number, unit in parts) == text:
        return sum(float(number) * _SECONDS[unit] for number, unit in parts), "_sec"
    return float(text), ""


def get_data_points_from_metrics_reports(
    metrics_reports: Sequence[str],
) -> dict[str, list[float | None]]:
    """The values of every name over several reports; None where a report lacks the name.

    For example {"MarkStep__Value": [10, 12], "aten::nonzero__Value": [None, 1]}.
    """
    parsed = [parse_metrics_report(report) for report in metrics_reports]
    names = dict.fromkeys(name for found in parsed for name in found)
    return {name: [found.get(name) for found in parsed] for name in names}


def compare_metrics(
    data_points: Mapping[str, Sequence[float | None]],
    metrics_report: str,
    config: Mapping[str, str] | None = DEFAULT_CONFIG,
) -> str:
    """What in a report breaks the rule that earlier reports set, one line each; "" for nothing.

    An operator that ran on the CPU in none of the earlier reports is a line too.

    Args:
        data_points: the earlier values, from `get_data_points_from_metrics_reports`.
        metrics_report: the report to judge.
        config: `base_expression`, and `NAME_expression` for single names. An expression is Python
            over v, v_mean and v_stddev, and says what is fine. It is evaluated: trust its author.
    """
    config = {**DEFAULT_CONFIG, **(config or {})}
    lines = []
    for name, value in sorted(parse_metrics_report(metrics_report).items()):
        points = [point for point in data_points.get(name, ()) if point is not None]
        if not points:
            if name.startswith(FALLBACK):
                lines.append(f"Found new aten counter: {name}: {value}\n")
            continue
        facts = {"v": value, "v_mean": float(np.mean(points)), "v_stddev": float(np.std(points))}
        rule = config.get(f"{name}_expression", config["base_expression"])
        if not eval(rule, {"__builtins__": {}}, facts):
            lines.append(
                f"{name} failed its expression check. Expression: {rule}.  Mean: {facts['v_mean']}."
                f"  Stddev: {facts['v_stddev']}.  Actual Value: {value}\n"
            )
    return "".join(lines)
