"""Metrics reports read back and compared."""

from torch_xdist.debug.metrics_compare import (
    compare_metrics,
    get_data_points_from_metrics_reports,
    parse_metrics_report,
)

__all__ = [
    "parse_metrics_report",
    "get_data_points_from_metrics_reports",
    "compare_metrics",
]
