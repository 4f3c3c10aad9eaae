"""Names of torch that tests use and that its releases spell differently, each in one place."""

import torch
import torch.distributed as dist

# torch 2.13 made the reduction itself callable.
premul_sum = dist.ReduceOp.PREMUL_SUM if torch.__version__ >= "2.13" else dist._make_nccl_premul_sum

# New names in 2.13 for what stays there under the old ones.
all_gather_single = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
reduce_scatter_single = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)

# DTensor flattens dims of which another than the first is divided.
FLATTENS_DIVIDED_DIMS = torch.__version__ >= "2.12"
