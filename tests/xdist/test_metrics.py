"""The registry of counters and metrics, and its text."""

import threading
import time
import weakref
from collections import deque

import pytest

from torch_xdist import metrics, settings


@pytest.fixture(autouse=True)
def own_registry(monkeypatch):
    """An empty registry for each test; the process' own one comes back afterwards."""
    for name in ("_counters", "_metrics", "_gone"):
        monkeypatch.setattr(metrics, name, {})
    for name in ("_notes", "_running", "_sources"):
        monkeypatch.setattr(metrics, name, deque())
    yield
    settings.reread()


def put(name, samples):
    """Samples as (seconds, value), without a clock."""
    metric = metrics._metrics[name] = metrics.Metric(name, settings.current().metrics_samples)
    for at_s, value in samples:
        metric.add(int(at_s * 1e9), value)


def test_the_report_has_the_exact_form():
    put("CompileTime", [(10.0, 0.001), (12.0, 0.003)])
    put("InboundData", [(1.0, 4638.7)])
    metrics.count("MarkStep", 3)
    metrics.count("CachedCompile")
    metrics.count("Never", 0)
    assert metrics.report() == (
        "Metric: CompileTime\n"
        "  TotalSamples: 2\n"
        "  Accumulator: 004ms000.000us\n"
        "  ValueRate: 002ms000.000us / second\n"
        "  Rate: 1 / second\n"
        "  Percentiles: 1%=001ms000.000us; 5%=001ms000.000us; 10%=001ms000.000us;"
        " 20%=001ms000.000us; 50%=003ms000.000us; 80%=003ms000.000us; 90%=003ms000.000us;"
        " 95%=003ms000.000us; 99%=003ms000.000us\n"
        "Metric: InboundData\n"
        "  TotalSamples: 1\n"
        "  Accumulator: 4.53KB\n"
        "  Percentiles: 1%=4.53KB; 5%=4.53KB; 10%=4.53KB; 20%=4.53KB; 50%=4.53KB; 80%=4.53KB;"
        " 90%=4.53KB; 95%=4.53KB; 99%=4.53KB\n"
        "Counter: CachedCompile\n"
        "  Value: 1\n"
        "Counter: MarkStep\n"
        "  Value: 3\n"
    )


def test_only_the_last_samples_are_kept_but_all_are_summed(monkeypatch):
    monkeypatch.setenv("XLA_METRICS_SAMPLES", "2")
    settings.reread()
    for value in (1, 2, 3):
        metrics.observe("TensorsGraphSize", value)
    total, accumulator, kept = metrics.metric_data("TensorsGraphSize")
    assert (total, accumulator, [value for _, value in kept]) == (3, 6, [2, 3])


def test_percentiles_come_from_the_environment(monkeypatch):
    monkeypatch.setenv("XLA_METRICS_PERCENTILES", "0.5:0.999")
    settings.reread()
    put("TensorsGraphSize", [(0, 1), (0, 2)])
    assert "Percentiles: 50%=2.00; 99.9%=2.00\n" in metrics.report()


def test_the_short_report_keeps_the_main_names_and_every_fallback():
    put("ExecuteTime", [(0, 1)])
    put("LazyTracing", [(0, 1)])
    for name in ("MarkStep", "CreateXlaTensor", "aten::nonzero"):
        metrics.count(name)
    short = metrics.short_report()
    assert "ExecuteTime" in short and "LazyTracing" not in short
    assert "MarkStep" in short and "CreateXlaTensor" not in short and "aten::nonzero" in short
    assert "CreateXlaTensor" in metrics.short_report(counter_names=["CreateXlaTensor"])


def test_an_unknown_name_has_no_value_and_no_data():
    assert metrics.counter_value("Nothing") is None
    assert metrics.metric_data("Nothing") is None


def test_clearing_forgets_counters_and_metrics_apart():
    metrics.count("MarkStep")
    metrics.observe("ExecuteTime", 1)
    metrics.clear_counters()
    assert (metrics.counter_names(), metrics.metric_names()) == ([], ["ExecuteTime"])
    metrics.clear_all()
    assert metrics.report() == ""


def test_reading_one_number_is_a_fallback_but_no_missing_lowering():
    metrics.count(metrics.READ_ONE_NUMBER)
    metrics.count("aten::nonzero")
    assert metrics.executed_fallback_ops() == ["aten::_local_scalar_dense", "aten::nonzero"]
    assert metrics.missing_lowerings() == ["aten::nonzero"]


def test_a_timed_block_that_raises_is_still_observed():
    with pytest.raises(KeyError), metrics.timed("CompileTime"):
        raise KeyError
    total, nanoseconds, _ = metrics.metric_data("CompileTime")
    assert total == 1 and nanoseconds > 0


def test_counting_from_many_threads_loses_nothing():
    def work():
        for _ in range(1000):
            metrics.count("MarkStep")

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert metrics.counter_value("MarkStep") == 8000


def test_times_are_given_in_seconds_and_kept_in_nanoseconds():
    metrics.observe("ExecuteTime", 0.25)
    assert metrics.metric_data("ExecuteTime")[1] == 0.25e9


def test_what_is_noted_is_counted_when_somebody_reads():
    tally = ("xla::add", 2), ("CreateXlaTensor", 3)
    for _ in range(3):
        metrics.note(tally, ("TensorsGraphSize", 5, 1))
    assert metrics._counters == {} and metrics._metrics == {}
    assert metrics.counter_value("xla::add") == 6
    assert metrics.counter_value("CreateXlaTensor") == 9
    assert metrics.metric_data("TensorsGraphSize")[:2] == (3, 15)


def test_notes_that_nobody_reads_are_counted_before_they_are_many():
    for _ in range(3 * metrics._MOST_NOTES):
        metrics.note((("xla::add", 1),))
    assert len(metrics._notes) <= metrics._MOST_NOTES
    assert metrics.counter_value("xla::add") == 3 * metrics._MOST_NOTES


def test_samples_of_one_note_share_what_they_took(monkeypatch):
    monkeypatch.setenv("XLA_METRICS_SAMPLES", "3")
    settings.reread()
    metrics.note((), ("LazyTracing", 2.0, 4))
    total, nanoseconds, kept = metrics.metric_data("LazyTracing")
    assert (total, nanoseconds) == (4, 2e9)
    assert [value for _, value in kept] == [0.5e9] * 3


def test_what_was_noted_before_a_clearing_is_forgotten():
    metrics.note((("xla::add", 1),), ("TensorsGraphSize", 1, 1))
    metrics.clear_all()
    assert metrics.report() == ""


def test_a_source_is_asked_before_a_reading_and_before_a_clearing():
    metrics.before_reading(lambda: metrics.note((("Pending", 1),)))
    assert metrics.counter_value("Pending") == 1
    metrics.clear_counters()
    assert metrics._counters == {}


def test_what_is_gone_is_what_was_made_less_what_is_alive():
    alive = [5]
    metrics.count_gone("Gone", "Made", lambda: alive[0])
    metrics.count("Made", 3)
    alive[0] = 6
    assert metrics.counter_value("Gone") == 2 and metrics.counter_names() == ["Gone", "Made"]
    metrics.clear_counters()
    assert metrics.counter_value("Gone") is None
    alive[0] = 2
    assert metrics.counter_value("Gone") == 4


class Result:
    """Stands for an array of a program that runs."""

    done = deleted = False

    def is_ready(self):
        return self.done

    def is_deleted(self):
        return self.deleted


def test_a_program_that_runs_is_a_sample_of_so_far_and_then_of_the_whole():
    result = Result()
    metrics.launched("ExecuteTime", time.perf_counter() - 1, result)
    total, before, _ = metrics.metric_data("ExecuteTime")
    assert total == 1 and before >= 1e9
    total, after, _ = metrics.metric_data("ExecuteTime")
    assert total == 1 and after > before
    result.done = True
    metrics.look()
    _, whole, _ = metrics.metric_data("ExecuteTime")
    assert metrics.metric_data("ExecuteTime")[:2] == (1, whole)


def test_a_program_whose_result_is_taken_or_dropped_counts_as_done():
    taken, dropped = Result(), Result()
    metrics.launched("ExecuteTime", time.perf_counter(), taken)
    metrics.launched("ExecuteTime", time.perf_counter(), dropped)
    taken.deleted, gone = True, weakref.ref(dropped)
    del dropped
    assert gone() is None
    metrics.look()
    assert not metrics._running and metrics.metric_data("ExecuteTime")[0] == 2


def test_a_program_that_is_done_at_once_took_its_call():
    metrics.launched("ExecuteTime", time.perf_counter(), None)
    assert not metrics._running and metrics.metric_data("ExecuteTime")[0] == 1
