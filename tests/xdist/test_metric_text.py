"""How durations and bytes read."""

import pytest

from torch_xdist.metric_text import bytes_text, time_text, value_text


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
    assert time_text(ns) == text


@pytest.mark.parametrize(
    ("amount", "text"),
    [(0, "0.00B"), (4638.7, "4.53KB"), (3 * 1024**2, "3.00MB"), (1024**5, "1.00PB")],
)
def test_bytes_read_as_in_torch_xla(amount, text):
    assert bytes_text(amount) == text


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("CompileTime", "001.000us"),
        ("RunCachedGraphInputData", "001.000us"),
        ("TensorToData", "001.000us"),
        ("DeviceLockWait", "001.000us"),
        ("InboundData", "1000.00B"),
        ("TensorsGraphSize", "1000.00"),
    ],
)
def test_what_a_metric_measures_follows_from_its_name(name, text):
    assert value_text(name)(1000.0) == text
