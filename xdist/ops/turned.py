"""Matrices that a CPU turns around by a copy of their own.

XLA fuses a transpose with what comes before and after it and computes it in the order of the
result: it reads one number of each row after the other, rows a power of two apart, which the caches
cannot hold. Its copy of a matrix goes block by block; barriers keep that apart, and a layout says
where it is made. 1024 x 1024 take 2.4 ms on two threads fused, 0.42 so on one
(docs/optimizations.md).
"""

import jax
from jax import lax
from jax.experimental.layout import Layout, with_layout_constraint

# Rows that are summed over: fewer are in a cache whatever the order. Numbers of a gradient or a
# result that is turned around, and of an input: of more XLA's own way is shared among threads.
_LEAST_ROWS = 512
_MOST = 2**19
_MOST_OF_INPUT = 2**20


def turned(matrix: jax.Array) -> jax.Array:
    """The transpose of a matrix [m, n], made by a copy on CPUs."""
    found: jax.Array = lax.platform_dependent(matrix, cpu=_copied, default=lambda m: m.T)
    return found


def _copied(matrix: jax.Array) -> jax.Array:
    seen = lax.optimization_barrier(lax.optimization_barrier(matrix).T)
    found: jax.Array = lax.optimization_barrier(with_layout_constraint(seen, Layout((0, 1))))
    return found


def over_rows(grad: jax.Array, x: jax.Array) -> jax.Array:
    """grad [..., o], x [..., i] -> [o, i], of float32 or float64, summed over the leading dims.

    On CPUs one of the two is turned around where a copy is quicker: the smaller one, if what that
    gives, [i, o], is small beside what it saves.
    """
    lead = tuple(range(x.ndim - 1))
    o, i = grad.shape[-1], x.shape[-1]
    k = x.size // max(i, 1)

    def as_they_lie(grad: jax.Array, x: jax.Array) -> jax.Array:
        dims = (lead, lead), ((), ())
        return lax.dot_general(grad, x, dims, preferred_element_type=x.dtype)

    def by_input(grad: jax.Array, x: jax.Array) -> jax.Array:
        return _copied(_copied(x.reshape(k, i)) @ grad.reshape(k, o))

    def by_gradient(grad: jax.Array, x: jax.Array) -> jax.Array:
        return _copied(grad.reshape(k, o)) @ x.reshape(k, i)

    is_small = k * i <= _MOST_OF_INPUT and i * o <= _MOST
    if k < _LEAST_ROWS:
        return as_they_lie(grad, x)
    if 5 * i * (k + o) < 3 * k * o and is_small:
        on_cpu = by_input
    elif k * o <= _MOST:
        on_cpu = by_gradient
    else:
        return as_they_lie(grad, x)
    found: jax.Array = lax.platform_dependent(grad, x, cpu=on_cpu, default=as_they_lie)
    return found
