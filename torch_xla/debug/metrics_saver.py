"""The metrics report, appended to XLA_METRICS_FILE."""

from torch_xdist.core.run.reports import (
    save_metrics,
)

__all__ = [
    "save_metrics",
]
