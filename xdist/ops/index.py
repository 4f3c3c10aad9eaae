"""Rows that read by an index: `index`, `gather`, `index_select`, `take`, embeddings.

An index out of range, which CPU torch refuses, reads the nearest element on the device (XLA
clamps); those that came from the host were looked at before (`index_ranges.py`). Boolean masks as
an index give a shape that depends on data and never arrive here.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from torch_xdist.ops import forms
from torch_xdist.ops.positions import narrowed, width
from torch_xdist.ops.table import lowers

# XLA clamps by itself; JAX's other modes would add a select to every read.
CLAMPED = "promise_in_bounds"


def wrapped(index: jax.Array, size: int) -> jax.Array:
    """The index with negative entries counted from the end, as wide as `size` needs."""
    index = index.astype(width(size))
    return jnp.where(index < 0, index + size, index)


def read_rows(self: jax.Array, index: jax.Array, dim: int) -> jax.Array:
    """`self` with `dim` replaced by the dims of a non-negative index."""
    at: tuple[Any, ...] = (slice(None),) * dim + (narrowed(index, self.shape[dim]),)
    return self.at[at].get(mode=CLAMPED, wrap_negative_indices=False)


@lowers(
    "aten.index.Tensor",
    "aten._unsafe_index.Tensor",
    "aten.index.Tensor_hacked_twin",
    "aten._unsafe_index.Tensor_hacked_twin",
)
def index(self: jax.Array, indices: Sequence[jax.Array | None]) -> jax.Array:
    at = tuple(
        slice(None) if i is None else narrowed(i, size) for i, size in zip(indices, self.shape)
    )
    return self.at[at].get(mode=CLAMPED)


@lowers("aten._unsafe_masked_index.default")
def unsafe_masked_index(
    self: jax.Array, mask: jax.Array, indices: Sequence[jax.Array | None], fill: Any
) -> jax.Array:
    """`self[indices]` where the mask holds, `fill` elsewhere; indices elsewhere mean nothing."""
    out_fill = jnp.asarray(fill).astype(self.dtype)
    if not self.size:
        shape = jax.eval_shape(lambda x: index(x, indices), self).shape
        return jnp.broadcast_to(out_fill, shape)
    return jnp.where(mask, index(self, indices), out_fill)


@lowers("aten.gather.default")
def gather(self: jax.Array, dim: int, index: jax.Array, *, sparse_grad: bool = False) -> jax.Array:
    if not index.size:
        return jnp.zeros(index.shape, self.dtype)
    if not self.ndim or not index.ndim:
        return jnp.broadcast_to(self.reshape(-1), (1,)).reshape(index.shape)
    dim %= self.ndim
    index = narrowed(index, self.shape[dim])
    # torch allows an index smaller than `self` in the other dims; JAX would broadcast.
    part = tuple(slice(None) if d == dim else slice(n) for d, n in enumerate(index.shape))
    return jnp.take_along_axis(self[part], index, dim, mode=CLAMPED)


@lowers("aten.index_select.default")
def index_select(self: jax.Array, dim: int, index: jax.Array) -> jax.Array:
    if not self.ndim:
        return self
    index, dim = index.reshape(-1), dim % self.ndim
    if forms.chosen().is_host and dim == self.ndim - 1 > 0:
        # Columns: a gather of rows of one element each, 1024 x 512 to 256: 107 us, by element 82.
        return gather(self, dim, jnp.broadcast_to(index, (*self.shape[:dim], index.size)))
    return read_rows(self, index, dim)


@lowers("aten.take.default")
def take(self: jax.Array, index: jax.Array) -> jax.Array:
    if not index.size:
        return jnp.zeros(index.shape, self.dtype)
    return read_rows(self.reshape(-1), wrapped(index, self.size), 0)


@lowers("aten.embedding.default")
def embedding(
    weight: jax.Array,
    indices: jax.Array,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> jax.Array:
    """[v, d] and indices [...]: [..., d]."""
    return read_rows(weight, indices, 0)


@lowers("aten.nonzero_static.default")
def nonzero_static(self: jax.Array, *, size: int, fill_value: int = -1) -> jax.Array:
    """[size, ndim]: the places of the first `size` nonzero elements, then `fill_value`."""
    if not self.size or not self.ndim:
        return jnp.full((size, self.ndim), fill_value, jnp.int64)
    places = jnp.nonzero(self, size=size, fill_value=fill_value)
    return jnp.stack(places, axis=-1).astype(jnp.int64)
