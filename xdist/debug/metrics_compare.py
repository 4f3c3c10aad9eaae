"""Read a metrics report back into numbers, and compare it with earlier ones."""

import re
import statistics
from collections.abc import Iterable, Mapping
from typing import Any

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
_MEGABYTES = {
    unit: 1024.0**power / 1e6 for power, unit in enumerate(("B", "KB", "MB", "GB", "TB", "PB"))
}
DEFAULT_CONFIG = {"base_expression": "v <= v_mean + (v_stddev * 2.0)"}


def parse_metrics_report(report: str, dehumanize: bool = True) -> dict[str, Any]:
    """The numbers of a report by name.

    Keys are `CompileTime__TotalSamples`, `CompileTime__Accumulator_sec`,
    `CompileTime__Percentile_50_sec`, `InboundData__Accumulator_mb` (10^6 bytes) and
    `MarkStep__Value`. With `dehumanize=False` each value is a pair (number, text as printed).
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
        put(f"{match['name']}__Value", match["value"])
    return found


def read_number(text: str) -> tuple[float, str]:
    """A printed value as (seconds, "_sec"), (10^6 bytes, "_mb") or (number, "")."""
    if match := _BYTES.fullmatch(text):
        return float(match[1]) * _MEGABYTES[match[2]], "_mb"
    parts = _TIME_PART.findall(text)
    if parts and "".join(number + unit for number, unit in parts) == text:
        return sum(float(number) * _SECONDS[unit] for number, unit in parts), "_sec"
    number = float(text)
    return (int(number) if number.is_integer() and "." not in text else number), ""


def get_data_points_from_metrics_reports(
    metrics_reports: Iterable[str],
) -> dict[str, list[float]]:
    """The values of every name over several reports: {"MarkStep__Value": [10, 12], ...}."""
    points: dict[str, list[float]] = {}
    for report in metrics_reports:
        for name, value in parse_metrics_report(report).items():
            points.setdefault(name, []).append(value)
    return points


def compare_metrics(
    data_points: Mapping[str, list[float]],
    metrics_report: str,
    config: Mapping[str, str] | None = DEFAULT_CONFIG,
) -> tuple[bool, str]:
    """Whether a report breaks the rule that earlier reports set.

    Args:
        data_points: the earlier values, from `get_data_points_from_metrics_reports`.
        metrics_report: the report to judge.
        config: `base_expression`, and `NAME_expression` for single names. An expression is Python
            over v, v_mean and v_stddev, and says what is fine. It is evaluated: trust its author.

    Returns (True and a text that names each break, or False and "").
    """
    config = {**DEFAULT_CONFIG, **(config or {})}
    breaks = []
    for name, (value, text) in parse_metrics_report(metrics_report, dehumanize=False).items():
        points = data_points.get(name)
        if not points:
            continue
        facts = {
            "v": value,
            "v_mean": statistics.fmean(points),
            "v_stddev": statistics.pstdev(points),
        }
        rule = config.get(f"{name}_expression", config["base_expression"])
        if not eval(rule, {"__builtins__": {}}, facts):
            breaks.append(
                f"{name}: {text} breaks `{rule}` (mean {facts['v_mean']:g}, standard deviation"
                f" {facts['v_stddev']:g} of {len(points)} reports)"
            )
    return bool(breaks), "\n".join(breaks)
