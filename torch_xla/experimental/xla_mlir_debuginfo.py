"""`torch.ops.xla.write_mlir_debuginfo`."""

from torch_xdist.export.debug_info import (
    write_mlir_debuginfo,
    write_mlir_debuginfo_meta,
    write_mlir_debuginfo_tensor,
)

__all__ = [
    "write_mlir_debuginfo",
    "write_mlir_debuginfo_meta",
    "write_mlir_debuginfo_tensor",
]
