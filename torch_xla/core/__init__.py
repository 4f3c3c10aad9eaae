"""The device, by the names of torch_xla.core."""

from torch_xdist.torch_xla_compat.submodules import on_demand as _on_demand

_on_demand(__name__)
