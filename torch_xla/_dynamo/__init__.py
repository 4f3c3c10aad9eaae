"""The backend `openxla` of torch.compile."""

from torch_xdist.torch_xla_compat.submodules import on_demand as _on_demand
from torch_xla._dynamo import config

_on_demand(__name__)

__all__ = ["config"]
