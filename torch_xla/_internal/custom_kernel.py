"""Operators of torch.ops.xla for captured graphs."""

from torch_xdist.dynamo.custom_ops import (
    dynamo_mark_sharding,
    dynamo_mark_sharding_xla,
    dynamo_set_buffer_donor_,
    dynamo_set_buffer_donor_xla_,
)

__all__ = [
    "dynamo_mark_sharding",
    "dynamo_mark_sharding_xla",
    "dynamo_set_buffer_donor_",
    "dynamo_set_buffer_donor_xla_",
]
