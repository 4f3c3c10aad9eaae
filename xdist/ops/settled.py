"""What is computed once on a CPU, however many use it.

XLA's fusion for CPUs puts what makes an array into each of its users, which then compute it anew:
the maxima of a pooling went into five of MNIST's, two thirds of the step. A barrier keeps it from
that, in programs compiled with the barriers kept (`core/programs/compile_options.py`).
"""

from typing import TypeVar

import jax
import jax.numpy as jnp
from jax import lax

_Arrays = TypeVar("_Arrays", jax.Array, tuple[jax.Array, ...], tuple[jax.Array, jax.Array])


def settled(arrays: _Arrays) -> _Arrays:
    """The same arrays, of any shapes; nothing on platforms whose fusion weighs such costs."""
    settled: _Arrays = lax.platform_dependent(
        arrays, cpu=lax.optimization_barrier, default=lambda arrays: arrays
    )
    return settled


def settled_if_complex(x: jax.Array) -> jax.Array:
    """What is written into a part of an array, or padded.

    A kernel that does so computes one number after the other, and complex functions are long: 256 x
    513 directions in 256 x 1024 zeros take 0.54 ms on a CPU so, 0.13 apart.
    """
    return settled(x) if jnp.iscomplexobj(x) else x
