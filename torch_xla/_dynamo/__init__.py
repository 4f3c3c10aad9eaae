"""The backend `openxla` of torch.compile."""

import sys

from torch_xdist.dynamo import config

# Scripts set its switches, so it is the module itself under this name.
sys.modules[f"{__name__}.config"] = config

__all__ = ["config"]
