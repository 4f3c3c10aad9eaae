"""`torch.ops.xla.mark_tensor`."""

from torch_xdist.export.markers import (
    BoundaryMetadata,
    BoundaryMetadataSerializer,
    deserialize_composite_attr,
    mark_tensor,
    mark_tensor_meta,
    mark_tensor_xla,
    serialize_composite_attr,
)
from torch_xdist.export.markers import (
    assert_valid_composite_attr as _assert_valid_composite_attr,
)

__all__ = [
    "BoundaryMetadata",
    "BoundaryMetadataSerializer",
    "_assert_valid_composite_attr",
    "deserialize_composite_attr",
    "mark_tensor",
    "mark_tensor_meta",
    "mark_tensor_xla",
    "serialize_composite_attr",
]
