"""The one registry of counters and metrics, and its report in torch_xla's text format.

Counters are numbers that grow; metrics are series of samples, each with a time. Every function
may be called from any thread. `count` and `observe` are called a few times per cut, never per row:
each takes one lock. What a sample measures follows from the metric's name:
`...Data` are bytes, `...Time` (and the few names below) durations, the rest plain numbers.

Source of the text format: the metrics report of torch_xla, as its documents print it.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from torch_xdist import settings

NS_PER_S = 1e9
FALLBACK = "aten::"
# Reading one number is no missing lowering, although torch_xla counts it like one.
READ_ONE_NUMBER = "aten::_local_scalar_dense"

_SHORT_COUNTERS = ("CachedCompile", "MarkStep", "DynamoSyncInputExecuteTime")
_SHORT_METRICS = (
    "CompileTime",
    "ExecuteTime",
    "ExecuteReplicatedTime",
    "TransferToDeviceTime",
    "TransferFromDeviceTime",
)
_TIME_NAMES = {
    "LazyTracing",
    "TensorToData",
    "RunCachedGraphInputData",
    "RunCachedGraphOutputData",
    "UnwrapXlaData",
    "WrapXlaData",
    "DeviceLockWait",
}


class Metric:
    """A series of samples: totals over all of them, details of the last ones."""

    def __init__(self, name: str, kept: int) -> None:
        self.name = name
        self.total = 0
        self.accumulator = 0.0
        self.samples: deque[tuple[int, float]] = deque(maxlen=kept)  # (time in ns, value)

    def add(self, at_ns: int, value: float) -> None:
        self.total += 1
        self.accumulator += value
        self.samples.append((at_ns, value))


_lock = threading.Lock()
_counters: dict[str, int] = {}
_metrics: dict[str, Metric] = {}


def count(name: str, n: int = 1) -> None:
    """Add `n` to a counter."""
    with _lock:
        _counters[name] = _counters.get(name, 0) + n


def observe(name: str, value: float) -> None:
    """Add one sample to a metric: seconds, bytes or a number, as its name says.

    Times are kept in nanoseconds, and `metric_data` returns them so.
    """
    at_ns = time.time_ns()
    if value_text(name) is time_text:
        value *= NS_PER_S
    with _lock:
        metric = _metrics.get(name)
        if metric is None:
            metric = _metrics[name] = Metric(name, settings.current().metrics_samples)
        metric.add(at_ns, value)


@contextmanager
def timed(name: str) -> Iterator[None]:
    """Observe how long the block takes, also when it raises."""
    started_s = time.perf_counter()
    try:
        yield
    finally:
        observe(name, time.perf_counter() - started_s)


def counter_names() -> list[str]:
    """The counters above zero, sorted."""
    with _lock:
        return sorted(name for name, value in _counters.items() if value)


def counter_value(name: str) -> int | None:
    """The value of a counter; None while it is zero or unknown."""
    with _lock:
        return _counters.get(name) or None


def metric_names() -> list[str]:
    """The metrics with at least one sample, sorted."""
    with _lock:
        return sorted(_metrics)


def metric_data(name: str) -> tuple[int, float, list[tuple[float, float]]] | None:
    """(number of samples, their sum, the kept samples as (time in seconds, value)), or None."""
    with _lock:
        metric = _metrics.get(name)
        if metric is None:
            return None
        kept = [(at_ns / NS_PER_S, value) for at_ns, value in metric.samples]
        return metric.total, metric.accumulator, kept


def clear_counters() -> None:
    """Forget every counter."""
    with _lock:
        _counters.clear()


def clear_metrics() -> None:
    """Forget every metric."""
    with _lock:
        _metrics.clear()


def clear_all() -> None:
    """Forget every counter and every metric."""
    clear_counters()
    clear_metrics()


def executed_fallback_ops() -> list[str]:
    """The operators that ran on the CPU because they have no lowering, as aten::NAME."""
    return [n for n in counter_names() if n.startswith(FALLBACK) and n != READ_ONE_NUMBER]


def report() -> str:
    """Every metric, then every counter, each sorted by name; ends with a newline if not empty."""
    return _report(lambda name: True, lambda name: True)


def short_report(
    counter_names: Iterable[str] | None = None, metric_names: Iterable[str] | None = None
) -> str:
    """The report of the named counters and metrics (default: the main ones) and all fallbacks."""
    counters = set(counter_names or _SHORT_COUNTERS)
    metrics = set(metric_names or _SHORT_METRICS)
    return _report(
        lambda name: name in metrics, lambda name: name in counters or name.startswith(FALLBACK)
    )


def _report(has_metric: Callable[[str], bool], has_counter: Callable[[str], bool]) -> str:
    percentiles = settings.current().metrics_percentiles
    with _lock:
        metrics = [
            _metric_text(_metrics[n], percentiles) for n in sorted(_metrics) if has_metric(n)
        ]
        counters = [
            f"Counter: {name}\n  Value: {value}\n"
            for name, value in sorted(_counters.items())
            if value and has_counter(name)
        ]
    return "".join(metrics + counters)


def _metric_text(metric: Metric, percentiles: tuple[float, ...]) -> str:
    text = value_text(metric.name)
    values = [value for _, value in metric.samples]
    lines = [
        f"Metric: {metric.name}",
        f"  TotalSamples: {metric.total}",
        f"  Accumulator: {text(metric.accumulator)}",
    ]
    seconds = (metric.samples[-1][0] - metric.samples[0][0]) / NS_PER_S
    if seconds > 0:
        lines.append(f"  ValueRate: {text(sum(values) / seconds)} / second")
        lines.append(f"  Rate: {len(values) / seconds:g} / second")
    values.sort()
    marks = (f"{p * 100:g}%={text(values[int(p * len(values))])}" for p in percentiles)
    lines.append(f"  Percentiles: {'; '.join(marks)}")
    return "\n".join(lines) + "\n"


def value_text(name: str) -> Callable[[float], str]:
    """How the samples of this metric are printed."""
    if name.endswith("Data"):
        return bytes_text
    if name.endswith("Time") or name in _TIME_NAMES:
        return time_text
    return "{:.2f}".format


_TIME_PARTS = (
    (24 * 3600 * NS_PER_S, "d", 2),
    (3600 * NS_PER_S, "h", 2),
    (60 * NS_PER_S, "m", 2),
    (NS_PER_S, "s", 2),
    (NS_PER_S / 1e3, "ms", 3),
)


def time_text(ns: float) -> str:
    """A duration in nanoseconds as torch_xla prints it: 1234567 -> 001ms234.567us.

    Each part is the rounded remainder, not the truncated one: 1.7e9 reads 02s700ms000.000us.
    """
    parts: list[str] = []
    for unit_ns, unit, width in _TIME_PARTS:
        amount = ns / unit_ns
        if amount >= 1 or parts:
            parts.append(f"{amount:0{width}.0f}{unit}")
            ns -= int(amount) * unit_ns
    parts.append(f"{ns / 1e3:07.3f}us")
    return "".join(parts)


def bytes_text(amount: float) -> str:
    """A number of bytes with a unit of base 1024: 4638.7 -> 4.53KB."""
    for unit in ("B", "KB", "MB", "GB", "TB"):
        if amount < 1024:
            return f"{amount:.2f}{unit}"
        amount /= 1024
    return f"{amount:.2f}PB"
