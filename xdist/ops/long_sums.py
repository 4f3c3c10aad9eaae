"""Sums over dims behind which many numbers lie, as XLA adds them up on a CPU by itself.

It gives sums to YNNPACK, which goes through rows of more than 16,384 numbers anew for each few of
them: 64 rows of 131,072 took 33 ms, 0.9 so; 8 of 128 x 256 0.65, 0.10; 16 of 32 of 12 x 1024 23.4,
0.7 (2 cores of a Xeon with AVX-512, 2026-11-29). Such are the gradients of what is shared by all
samples: of learned positions, of biases of attention's scores.
"""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from torch_xdist.ops.reduce import Dims, axes, summand

_LONG = 2**14


def are_long(shape: Sequence[int], dim: Dims) -> bool:
    """Whether so many numbers lie behind the dims of a sum that this is the better way."""
    dims = (dim,) if isinstance(dim, int) else dim
    if not dims or not shape:
        return False
    return math.prod(shape[max(one % len(shape) for one in dims) + 1 :]) > _LONG


def long_sum(
    self: jax.Array, dim: Dims, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> jax.Array:
    """As `aten.sum.dim_IntList`."""
    numbers, dims = summand(self, dtype), axes(self, dim)
    total = lax.reduce(numbers, np.zeros((), numbers.dtype), _plus, dims)
    return jnp.expand_dims(total, dims) if keepdim else total


def long_mean(
    self: jax.Array, dim: Dims, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> jax.Array:
    """As `aten.mean.dim`."""
    total = long_sum(self, dim, keepdim, dtype=dtype)
    return total / math.prod(self.shape[one] for one in axes(self, dim))


def _plus(a: jax.Array, b: jax.Array) -> jax.Array:
    """Their sum, in words that YNNPACK is not asked for."""
    return lax.sub(a, lax.neg(b))
