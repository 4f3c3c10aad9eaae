"""Names of devices."""

from torch_xdist.core.devices.device_names import parse_xla_device

__all__ = ["parse_xla_device"]
