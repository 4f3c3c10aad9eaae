"""Gradient checkpointing of a module, and parts of FSDP, where torch_xla has them."""

from torch_xdist.ranks.fsdp.stand_ins import (
    BucketizedReduceScatter,
    DummyReduceScatter,
    dummy_all_gather,
    dummy_all_reduce,
)
from torch_xdist.ranks.fsdp.wrap import (
    checkpoint_module,
)
from torch_xdist.spmd.linear import (
    XLAPatchedLinear,
)
from torch_xdist.spmd.linear import (
    patch_forward_of_linears as apply_xla_patch_to_nn_linear,
)
from torch_xdist.training.activation_checkpoint import (
    checkpoint,
)

__all__ = [
    "BucketizedReduceScatter",
    "DummyReduceScatter",
    "XLAPatchedLinear",
    "apply_xla_patch_to_nn_linear",
    "checkpoint",
    "checkpoint_module",
    "dummy_all_gather",
    "dummy_all_reduce",
]
