"""Distances between the rows of matrices, their gradients, and the cross product."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_xdist.ops.index import read_rows
from torch_xdist.ops.matmul import product
from torch_xdist.ops.table import lowers

# Above this many rows torch takes the matrix product for Euclidean distances.
_DIRECT_ROWS = 25


def _norm(diff: jax.Array, p: float) -> jax.Array:
    """The p-norm over the last dim."""
    size = jnp.abs(diff)
    if p == 0:
        return jnp.sum(diff != 0, -1).astype(diff.dtype)
    if p == 1:
        return jnp.sum(size, -1)
    if p == 2:
        return jnp.sqrt(jnp.sum(size * size, -1))
    if math.isinf(p):
        # torch passes over a nan here.
        return jnp.max(jnp.where(jnp.isnan(size), 0, size), -1, initial=0)
    return jnp.sum(size**p, -1) ** (1 / p)


@lowers("aten._euclidean_dist.default")
def euclidean_dist(x1: jax.Array, x2: jax.Array) -> jax.Array:
    """[..., p, m] and [..., r, m]: [..., p, r], by one matrix product."""
    # The squares are summed in the product as well: near rows cancel to the last bits there.
    batch, last = tuple(range(x1.ndim - 2)), (x1.ndim - 1,)
    square1, square2 = (jnp.sum(x * x, -1, keepdims=True) for x in (x1, x2))
    wide1 = jnp.concatenate([-2 * x1, square1, jnp.ones_like(square1)], -1)
    wide2 = jnp.concatenate([x2, jnp.ones_like(square2), square2], -1)
    return jnp.sqrt(jnp.maximum(product(wide1, wide2, (last, last), (batch, batch)), 0))


@lowers("aten._cdist_forward.default")
def cdist_forward(x1: jax.Array, x2: jax.Array, p: float, compute_mode: int | None) -> jax.Array:
    """`compute_mode`: 0 product from 26 rows on, 1 always the product, 2 never."""
    batch = jnp.broadcast_shapes(x1.shape[:-2], x2.shape[:-2])
    x1, x2 = (jnp.broadcast_to(x, (*batch, *x.shape[-2:])) for x in (x1, x2))
    many = max(x1.shape[-2], x2.shape[-2]) > _DIRECT_ROWS
    if p == 2 and (compute_mode == 1 or (not compute_mode and many)):
        return euclidean_dist(x1, x2)
    return _norm(x1[..., :, None, :] - x2[..., None, :, :], p)


def _weights(diff: jax.Array, grad: jax.Array, dist: jax.Array, p: float) -> jax.Array:
    """The gradient of each difference; 0 where two rows are equal, as torch defines it."""
    grad, dist = grad[..., None], dist[..., None]
    if p == 0:
        return jnp.zeros_like(diff)
    if p == 1:
        return grad * jnp.sign(diff)
    safe = jnp.where(dist == 0, 1, dist)
    if p == 2:
        return jnp.where(dist == 0, 0, grad / safe) * diff
    if math.isinf(p):
        return grad * jnp.sign(diff) * (jnp.abs(diff) == dist)
    size = jnp.abs(diff)
    if p < 2:
        steep = jnp.where(size == 0, 1, size) ** (p - 1) if p < 1 else size ** (p - 1)
        out = jnp.sign(diff) * steep * grad / safe ** (p - 1)
        return jnp.where((dist == 0) | ((size == 0) & (p < 1)), 0, out)
    return jnp.where(dist == 0, 0, diff * size ** (p - 2) * grad / safe ** (p - 1))


@lowers("aten._cdist_backward.default")
def cdist_backward(
    grad: jax.Array, x1: jax.Array, x2: jax.Array, p: float, cdist: jax.Array
) -> jax.Array:
    """The gradient [..., p, m] of x1 from that of the distances [..., p, r]."""
    diff = x1[..., :, None, :] - x2[..., None, :, :]
    whole = jnp.sum(_weights(diff, grad, cdist, p), -2)
    # Only an empty batch arrives with an x1 that is not expanded.
    return whole if whole.size or whole.shape == x1.shape else jnp.zeros_like(x1)


@lowers("aten._pdist_forward.default")
def pdist_forward(self: jax.Array, p: float = 2.0) -> jax.Array:
    """[n, m]: the distances of all pairs i < j, row after row."""
    first, second = np.triu_indices(self.shape[0], 1)
    return _norm(read_rows(self, first, 0) - read_rows(self, second, 0), p)


@lowers("aten._pdist_backward.default")
def pdist_backward(grad: jax.Array, self: jax.Array, p: float, pdist: jax.Array) -> jax.Array:
    n = self.shape[0]
    if not grad.size:
        return jnp.zeros_like(self)
    row = lax.broadcasted_iota(jnp.int64, (n, n), 0)
    col = lax.broadcasted_iota(jnp.int64, (n, n), 1)
    low, high = jnp.minimum(row, col), jnp.maximum(row, col)
    pair = low * n - low * (low + 1) // 2 + high - low - 1
    pair = jnp.where(row == col, 0, pair)
    square = [jnp.where(row == col, 0, read_rows(x, pair, 0)) for x in (grad, pdist)]
    return cdist_backward(square[0], self, self, p, square[1])


@lowers("aten.linalg_cross.default")
def linalg_cross(self: jax.Array, other: jax.Array, *, dim: int = -1) -> jax.Array:
    self, other = jnp.broadcast_arrays(self, other)
    return jnp.cross(self, other, axis=dim)
