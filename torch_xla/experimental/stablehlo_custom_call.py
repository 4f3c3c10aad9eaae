"""Custom calls of StableHLO, and tensors in the memory of the host."""

from torch_xdist.export.custom_calls import (
    extract_custom_call_outputs_shape_dtype,
    place_to_device,
    place_to_host,
    stablehlo_custom_call,
    to_device_backward,
    to_host_backward,
)
from torch_xdist.export.custom_calls import (
    like as _,
)
from torch_xdist.export.custom_calls import (
    place_to_device_impl as _place_to_device_impl,
)
from torch_xdist.export.custom_calls import (
    place_to_host_impl as _place_to_host_impl,
)

__all__ = [
    "_",
    "_place_to_device_impl",
    "_place_to_host_impl",
    "extract_custom_call_outputs_shape_dtype",
    "place_to_device",
    "place_to_host",
    "stablehlo_custom_call",
    "to_device_backward",
    "to_host_backward",
]
