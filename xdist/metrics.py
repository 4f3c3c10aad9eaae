"""The one registry of counters and metrics, and its report in torch_xla's text format.

Counters are numbers that grow; metrics are series of samples, each with a time. Every function
may be called from any thread. What happens at every step is noted (`note`, `launched`), which is
one append without a lock, and is counted when somebody reads; what is rare is counted at once
(`count`, `observe`), under the lock. Nothing is called per operator.

Source of the text format: the metrics report of torch_xla, as its documents print it.
"""

import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch_xdist import settings
from torch_xdist.metric_text import NS_PER_S, time_text, value_text

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
# Of what is noted and not counted; then whoever notes counts it.
_MOST_NOTES = 4096

# Counters that grow together, each with by how much.
Tally = tuple[tuple[str, int], ...]
# (metric, what the samples are together, how many they are).
Sample = tuple[str, float, int]


class Metric:
    """A series of samples: totals over all of them, details of the last ones."""

    def __init__(self, name: str, kept: int) -> None:
        self.name = name
        self.total = 0
        self.accumulator = 0.0
        self.samples: deque[tuple[int, float]] = deque(maxlen=kept)  # (time in ns, value)

    def add(self, at_ns: int, value: float, times: int = 1) -> None:
        """Add samples of one size, `value` together; seconds where it is a time."""
        if value_text(self.name) is time_text:
            value *= NS_PER_S
        self.total += times
        self.accumulator += value
        if times == 1:
            self.samples.append((at_ns, value))
        elif times:
            kept = min(times, self.samples.maxlen or times)
            self.samples.extend([(at_ns, value / times)] * kept)

    def copy(self) -> "Metric":
        """Another one with the same samples."""
        other = Metric(self.name, self.samples.maxlen or 1)
        other.total, other.accumulator = self.total, self.accumulator
        other.samples.extend(self.samples)
        return other


@dataclass(slots=True, eq=False)
class _Launch:
    """A program that was running when it was last looked at."""

    metric: str
    started_s: float
    result: weakref.ref[Any]

    def is_done(self) -> bool:
        array = self.result()
        return array is None or array.is_deleted() or array.is_ready()


@dataclass(slots=True)
class _Gone:
    """What a counter of things that are gone is made of: `made` - (alive now - alive before)."""

    made: str
    alive: Callable[[], int]
    before: int


_lock = threading.RLock()
_counters: dict[str, int] = {}
_metrics: dict[str, Metric] = {}
_gone: dict[str, _Gone] = {}
_notes: deque[tuple[int, Tally, tuple[Sample, ...]]] = deque()
_running: deque[_Launch] = deque()
_sources: list[Callable[[], None]] = []


def count(name: str, n: int = 1) -> None:
    """Add `n` to a counter."""
    with _lock:
        _counters[name] = _counters.get(name, 0) + n


def observe(name: str, value: float) -> None:
    """Add one sample to a metric: seconds, bytes or a number, as its name says.

    Times are kept in nanoseconds, and `metric_data` returns them so.
    """
    at_ns = time.time_ns()
    with _lock:
        _metric(name).add(at_ns, value)


def note(tally: Tally, *samples: Sample) -> None:
    """Counters and samples to be counted when somebody reads.

    A tally that comes again should be the same object: its counters are then added once.
    """
    _notes.append((time.time_ns(), tally, samples))
    if len(_notes) > _MOST_NOTES:
        _count_notes()


def launched(name: str, started_s: float, result: Any) -> None:
    """A program was launched at `started_s` (of `time.perf_counter`); one sample of a metric.

    It lasts until a look (`look`) finds it done, or, where a reader comes before, until then.

    Args:
        result: one of its arrays, to which only a weak reference is kept; None where it has none.
    """
    if result is None or result.is_ready():
        note((), (name, time.perf_counter() - started_s, 1))
    else:
        _running.append(_Launch(name, started_s, weakref.ref(result)))


def look() -> None:
    """Note which programs are done. Called where the host waits for the device, and at launches."""
    if not _running:
        return
    with _lock:
        while _running and _running[0].is_done():
            launch = _running.popleft()
            note((), (launch.metric, time.perf_counter() - launch.started_s, 1))


def before_reading(source: Callable[[], None]) -> None:
    """Call `source`, which notes what there is besides, before anybody reads or clears."""
    _sources.append(source)


def count_gone(name: str, made: str, alive: Callable[[], int]) -> None:
    """A counter of things that are gone: those the counter `made` counts, less those alive."""
    _gone[name] = _Gone(made, alive, alive())


@contextmanager
def timed(name: str) -> Iterator[None]:
    """Observe how long the block takes, also when it raises."""
    started_s = time.perf_counter()
    try:
        yield
    finally:
        observe(name, time.perf_counter() - started_s)


def _metric(name: str) -> Metric:
    metric = _metrics.get(name)
    if metric is None:
        metric = _metrics[name] = Metric(name, settings.current().metrics_samples)
    return metric


def _settle() -> None:
    """Count all that was noted."""
    for source in _sources:
        source()
    look()
    _count_notes()


def _count_notes() -> None:
    times: dict[int, int] = {}
    tallies: list[Tally] = []
    with _lock:
        while _notes:
            at_ns, tally, samples = _notes.popleft()
            if tally and id(tally) not in times:
                tallies.append(tally)
            times[id(tally)] = times.get(id(tally), 0) + 1
            for name, value, n in samples:
                if n:
                    _metric(name).add(at_ns, value, n)
        for tally in tallies:
            for name, n in tally:
                _counters[name] = _counters.get(name, 0) + n * times[id(tally)]


def _present_counters() -> dict[str, int]:
    """The counters above zero, in the order of their names."""
    _settle()
    with _lock:
        names = sorted({*_counters, *_gone})
        values = [(name, _counters.get(name, 0) + _gone_now(name)) for name in names]
    return {name: value for name, value in values if value}


def _gone_now(name: str) -> int:
    gone = _gone.get(name)
    if gone is None:
        return 0
    return max(0, _counters.get(gone.made, 0) + gone.before - gone.alive())


def _present_metrics() -> dict[str, Metric]:
    """The metrics with a sample; what runs still has been running until now."""
    _settle()
    with _lock:
        found = dict(_metrics)
        for launch in _running:
            name = launch.metric
            if found.get(name) is _metrics.get(name):
                old = _metrics.get(name)
                found[name] = old.copy() if old else Metric(name, 1)
            found[name].add(time.time_ns(), time.perf_counter() - launch.started_s)
    return found


def counter_names() -> list[str]:
    """The counters above zero, sorted."""
    return list(_present_counters())


def counter_value(name: str) -> int | None:
    """The value of a counter; None while it is zero or unknown."""
    _settle()
    with _lock:
        return (_counters.get(name, 0) + _gone_now(name)) or None


def metric_names() -> list[str]:
    """The metrics with at least one sample, sorted."""
    return sorted(_present_metrics())


def metric_data(name: str) -> tuple[int, float, list[tuple[float, float]]] | None:
    """(number of samples, their sum, the kept samples as (time in seconds, value)), or None."""
    with _lock:
        metric = _present_metrics().get(name)
        if metric is None:
            return None
        kept = [(at_ns / NS_PER_S, value) for at_ns, value in metric.samples]
        return metric.total, metric.accumulator, kept


def clear_counters() -> None:
    """Forget every counter."""
    _settle()
    with _lock:
        _counters.clear()
        for gone in _gone.values():
            gone.before = gone.alive()


def clear_metrics() -> None:
    """Forget every metric, and what is running."""
    _settle()
    with _lock:
        _metrics.clear()
        _running.clear()


def clear_all() -> None:
    """Forget every counter and every metric."""
    clear_counters()
    clear_metrics()


def executed_fallback_ops() -> list[str]:
    """The operators that ran on the CPU, as aten::NAME; the reading of one number is one of them.

    Cost: none of the counters that are counted when they are read.
    """
    with _lock:
        return sorted(name for name, n in _counters.items() if n and name.startswith(FALLBACK))


def missing_lowerings() -> list[str]:
    """The operators that ran on the CPU because they have no lowering, as aten::NAME."""
    return [name for name in executed_fallback_ops() if name != READ_ONE_NUMBER]


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
        present = _present_metrics()
        metrics = [_metric_text(present[n], percentiles) for n in sorted(present) if has_metric(n)]
    counters = [
        f"Counter: {name}\n  Value: {value}\n"
        for name, value in _present_counters().items()
        if has_counter(name)
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
