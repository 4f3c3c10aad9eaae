"""What training scripts import from torch_xla.test."""

from torch_xdist.torch_xla_compat.submodules import on_demand as _on_demand

_on_demand(__name__)
