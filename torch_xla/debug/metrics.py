"""`met`: counters, metrics and their report."""

from torch_xdist.metrics import (
    clear_all,
    clear_counters,
    clear_metrics,
    counter_names,
    counter_value,
    executed_fallback_ops,
    metric_data,
    metric_names,
)
from torch_xdist.metrics import (
    report as metrics_report,
)
from torch_xdist.metrics import (
    short_report as short_metrics_report,
)

__all__ = [
    "metrics_report",
    "short_metrics_report",
    "counter_names",
    "counter_value",
    "clear_counters",
    "metric_names",
    "metric_data",
    "clear_metrics",
    "clear_all",
    "executed_fallback_ops",
]
