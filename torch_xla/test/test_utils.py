"""The lines training scripts print, and their summaries."""

from torch_xdist.debug.training_log import (
    close_summary_writer,
    get_summary_writer,
    mp_test,
    now,
    print_test_update,
    print_training_update,
    write_to_summary,
)

__all__ = [
    "mp_test",
    "get_summary_writer",
    "close_summary_writer",
    "write_to_summary",
    "now",
    "print_training_update",
    "print_test_update",
]
