"""The registry of counters and metrics, and its text."""

import threading

import pytest

from torch_xdist import metrics, settings


@pytest.fixture(autouse=True)
def own_registry(monkeypatch):
    """An empty registry for each test; the process' own one comes back afterwards."""
    monkeypatch.setattr(metrics, "_counters", {})
    monkeypatch.setattr(metrics, "_metrics", {})
    yield
    settings.reread()


def put(name, samples):
    """Samples as (seconds, value), without a clock."""
    metric = metrics._metrics[name] = metrics.Metric(name, settings.current().metrics_samples)
    for at_s, value in samples:
        metric.add(int(at_s * 1e9), value)


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "000.000us"),
        (999, "000.999us"),
        (1_234_567, "001ms234.567us"),
        (1.7e9, "02s700ms000.000us"),
        (59.9999e9, "60s1000ms900.000us"),
        (369_001_746_001, "06m09s002ms746.001us"),
        (90_000e9, "01d01h00m00s000ms000.000us"),
    ],
)
def test_a_duration_reads_as_in_torch_xla(ns, text):
    assert metrics.time_text(ns) == text


@pytest.mark.parametrize(
    ("amount", "text"),
    [(0, "0.00B"), (4638.7, "4.53KB"), (3 * 1024**2, "3.00MB"), (1024**5, "1.00PB")],
)
def test_bytes_read_as_in_torch_xla(amount, text):
    assert metrics.bytes_text(amount) == text


def test_the_report_has_the_exact_form():
    put("CompileTime", [(10.0, 1_000_000), (12.0, 3_000_000)])
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


def test_reading_one_number_is_no_fallback():
    metrics.count(metrics.READ_ONE_NUMBER)
    metrics.count("aten::nonzero")
    assert metrics.executed_fallback_ops() == ["aten::nonzero"]


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
