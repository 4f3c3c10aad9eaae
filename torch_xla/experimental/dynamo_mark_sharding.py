"""Up to 2.4 importing this registered `torch.ops.xla.dynamo_mark_sharding`."""

from torch_xdist.torch_xla_compat.deprecation import (
    old_module,
)

old_module(__name__, "torch.ops.xla.dynamo_mark_sharding, which import torch_xla registers")
