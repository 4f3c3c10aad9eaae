"""Settings of the hardware: how exact a float32 matrix product is."""

from torch_xdist.torch_xla_compat.runtime_facts import (
    _WARNING_MESSAGE as _WARNING_MESSAGE,
)
from torch_xdist.torch_xla_compat.runtime_facts import (
    get_mat_mul_precision,
    set_mat_mul_precision,
)
from torch_xdist.torch_xla_compat.runtime_facts import (
    logger as logger,
)

__all__ = [
    "set_mat_mul_precision",
    "get_mat_mul_precision",
]
