"""TPU facts that launchers ask for."""

from torch_xdist.torch_xla_compat.tpu_facts import (
    num_available_chips,
    num_available_devices,
    version,
)

__all__ = [
    "num_available_devices",
    "num_available_chips",
    "version",
]
