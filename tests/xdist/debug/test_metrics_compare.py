"""Metrics reports read back into numbers."""

import pytest

from torch_xdist.debug import metrics_compare as compare

REPORT = """Metric: CompileTime
  TotalSamples: 202
  Accumulator: 06m09s401ms746.001us
  ValueRate: 778ms572.062us / second
  Rate: 0.425201 / second
  Percentiles: 1%=001ms032.778us; 50%=001ms228.773us; 99%=21s102ms853.173us
Metric: InboundData
  TotalSamples: 2
  Accumulator: 4.53KB
  Percentiles: 1%=2.00KB; 99%=2.53KB
Counter: CachedCompile
  Value: 395
"""


def test_every_number_is_found_with_its_unit():
    found = compare.parse_metrics_report(REPORT)
    assert found["CompileTime__TotalSamples"] == 202
    assert found["CompileTime__Accumulator_sec"] == pytest.approx(369.401746001)
    assert found["CompileTime__Percentile_99_sec"] == pytest.approx(21.102853173)
    assert found["InboundData__Accumulator_mb"] == pytest.approx(0.00453)
    assert found["CachedCompile__Value"] == 395
    assert not any("Rate" in name for name in found)


def test_the_printed_text_may_be_kept():
    found = compare.parse_metrics_report(REPORT, dehumanize=False)
    assert found["InboundData__Accumulator_mb"][1] == "4.53KB"


def test_a_report_is_compared_with_earlier_ones():
    points = compare.get_data_points_from_metrics_reports([REPORT, REPORT])
    assert points["CachedCompile__Value"] == [395, 395]
    assert compare.compare_metrics(points, REPORT) == ""
    worse = REPORT.replace("Value: 395", "Value: 396")
    assert compare.compare_metrics(points, worse) == (
        "CachedCompile__Value failed its expression check. Expression: v <= v_mean + (v_stddev *"
        " 2.0).  Mean: 395.0.  Stddev: 0.0.  Actual Value: 396\n"
    )
    rule = {"CachedCompile__Value_expression": "v < 1000"}
    assert compare.compare_metrics(points, worse, rule) == ""


def test_a_name_that_a_report_lacks_has_none_there():
    points = compare.get_data_points_from_metrics_reports([REPORT, ""])
    assert points["CachedCompile__Value"] == [395, None]
    assert compare.compare_metrics(points, REPORT) == ""


def test_an_operator_that_is_new_on_the_cpu_is_told():
    points = compare.get_data_points_from_metrics_reports([REPORT])
    new = "Counter: aten::nonzero\n  Value: 2\nCounter: xla::add\n  Value: 1\n"
    assert compare.compare_metrics(points, REPORT + new) == (
        "Found new aten counter: aten::nonzero__Value: 2\n"
    )
