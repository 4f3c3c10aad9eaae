"""Functions without side effects, traced once."""

from torch_xdist.torch_xla_compat.jax_imports import (
    maybe_get_jax,
    maybe_get_torchax,
    requires_jax,
)
from torch_xdist.training.assume_pure import (
    PureModule,
    _pure_forward,
    assume_pure,
    j2t_autograd,
)
from torch_xdist.training.pure_computation import (
    _XLA_COMPUTATION_CACHE,
    assume_pure_torch,
    make_fake_inputs,
    prepare_computation_inputs,
)

__all__ = [
    "_XLA_COMPUTATION_CACHE",
    "PureModule",
    "_pure_forward",
    "assume_pure",
    "assume_pure_torch",
    "j2t_autograd",
    "make_fake_inputs",
    "maybe_get_jax",
    "maybe_get_torchax",
    "prepare_computation_inputs",
    "requires_jax",
]
