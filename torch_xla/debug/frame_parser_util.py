"""Where operators ran on the CPU, from the file that XLA_FNTRACKER_FILE named."""

from torch_xdist.core.run.unlowered import (
    create_report,
    parse_frame_content,
    parse_frames,
    process_frames,
)

__all__ = [
    "create_report",
    "parse_frame_content",
    "parse_frames",
    "process_frames",
]
