"""The wrapper class and the names beside it, where torch_xla has them."""

from math import inf

from torch_xdist.ranks.fsdp.flatten_wrapper import (
    XlaFlattenParamsWrapper,
)
from torch_xdist.ranks.fsdp.module import (
    XlaFullyShardedDataParallel,
)
from torch_xdist.ranks.fsdp.options import (
    FLOAT_DTYPES,
    XLA_DISABLE_FUNCTIONALIZATION,
)
from torch_xdist.ranks.fsdp.passes import (
    apply_to_tensors,
    collect_tensors,
)
from torch_xdist.ranks.fsdp.stand_ins import (
    BucketizedReduceScatter,
    DummyReduceScatter,
    dummy_all_gather,
    dummy_all_reduce,
)
from torch_xdist.ranks.fsdp.unit import (
    TrainingState,
)
from torch_xdist.ranks.fsdp.wrap import (
    recursive_wrap,
)
from torch_xdist.spmd.linear import (
    patch_forward_of_linears as apply_xla_patch_to_nn_linear,
)
from torch_xdist.training.activation_checkpoint import (
    chkpt_status,
)

__all__ = [
    "FLOAT_DTYPES",
    "XLA_DISABLE_FUNCTIONALIZATION",
    "BucketizedReduceScatter",
    "DummyReduceScatter",
    "TrainingState",
    "XlaFlattenParamsWrapper",
    "XlaFullyShardedDataParallel",
    "apply_to_tensors",
    "apply_xla_patch_to_nn_linear",
    "chkpt_status",
    "collect_tensors",
    "dummy_all_gather",
    "dummy_all_reduce",
    "inf",
    "recursive_wrap",
]
