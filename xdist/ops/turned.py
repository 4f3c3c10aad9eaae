"""Large weights of convolutions whose dims are exchanged on a CPU by a copy of XLA's own.

XLA fuses an exchange of dims with what comes before and after it, and computes it in the order of
the result: it then reads one number of each row after the other, rows a power of two apart, which
the caches cannot hold. Weights of 512 x 512 x 3 x 3 take 2 to 2.6 ns a number so, in programs
without fusion emitters (`core/programs/compile_options.py`), and 0.6 by its copy of matrices, which
goes block by block. Barriers keep the copy apart, and a layout says where it is made.
"""

import jax
from jax import lax
from jax.experimental.layout import Layout, with_layout_constraint

# Smaller ones are in a cache whatever the order.
_LARGE = 2**16


def out_last(weight: jax.Array) -> jax.Array:
    """[o, c, *kernel] -> [taps, c, o]: a copy of a matrix, and rows of o elements in order."""
    o, c = weight.shape[:2]
    return _turned(weight.reshape(o, -1)).reshape(c, -1, o).swapaxes(0, 1)


def out_first(by_channel: jax.Array) -> jax.Array:
    """[c, ..., o] -> [o, c, ...]."""
    *rest, o = by_channel.shape
    return _turned(by_channel.reshape(-1, o)).reshape(o, *rest)


def _turned(matrix: jax.Array) -> jax.Array:
    """The transpose of a matrix, made by a copy if it is large."""

    def plain(matrix: jax.Array) -> jax.Array:
        return matrix.T

    def copied(matrix: jax.Array) -> jax.Array:
        seen = lax.optimization_barrier(plain(lax.optimization_barrier(matrix)))
        found: jax.Array = lax.optimization_barrier(with_layout_constraint(seen, Layout((0, 1))))
        return found

    if matrix.size < _LARGE:
        return plain(matrix)
    found: jax.Array = lax.platform_dependent(matrix, cpu=copied, default=plain)
    return found
