"""Settings of the hardware: how exact a float32 matrix product is."""

from torch_xdist.torch_xla_compat.runtime_facts import (
    get_mat_mul_precision,
    set_mat_mul_precision,
)

__all__ = [
    "set_mat_mul_precision",
    "get_mat_mul_precision",
]
