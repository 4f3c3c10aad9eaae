"""`torch.ops.xla.dynamic_view` and `dynamic_expand`."""

from torch_xdist.export.dynamic_reshapes import (
    dynamic_expand,
    dynamic_expand_meta,
    dynamic_expand_xla,
    dynamic_view,
    dynamic_view_meta,
    dynamic_view_xla,
)

__all__ = [
    "dynamic_expand",
    "dynamic_expand_meta",
    "dynamic_expand_xla",
    "dynamic_view",
    "dynamic_view_meta",
    "dynamic_view_xla",
]
