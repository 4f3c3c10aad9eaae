"""Rows of jagged nested tensors, padded to one length and back."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from torch_xdist.ops.table import lowers

Scalar = Any  # a Python number, or a 0-d array where the value is an input of the program


@lowers("aten._jagged_to_padded_dense_forward.default")
def jagged_to_padded(
    values: jax.Array,
    offsets: Sequence[jax.Array],
    max_lengths: Sequence[int],
    padding_value: Scalar = 0.0,
) -> jax.Array:
    """[total, ...] and offsets [n + 1]: [n, max length, ...]; what is longer is cut off."""
    (bounds,), (longest,) = offsets, max_lengths
    padding = jnp.asarray(padding_value).astype(values.dtype)
    if not values.shape[0]:
        return jnp.full((bounds.shape[0] - 1, longest, *values.shape[1:]), padding, values.dtype)
    step = jnp.arange(longest, dtype=bounds.dtype)
    places = bounds[:-1, None] + step
    is_there = places < bounds[1:, None]
    rows = values.at[jnp.where(is_there, places, 0)].get(mode="clip")
    return jnp.where(is_there.reshape(*is_there.shape, *(1,) * (values.ndim - 1)), rows, padding)


@lowers("aten._padded_dense_to_jagged_forward.default", shaped=True)
def padded_to_jagged(
    dense: jax.Array, offsets: Sequence[jax.Array], total_L: int | None = None
) -> jax.Array:
    """[n, length, ...] and offsets [n + 1]: [total, ...], zeros where sequences are longer."""
    (bounds,) = offsets
    if total_L is None:
        raise NotImplementedError("how many rows there are is in the offsets")
    if not dense.shape[0] or not dense.shape[1]:
        return jnp.zeros((total_L, *dense.shape[2:]), dense.dtype)
    row = jnp.arange(total_L, dtype=bounds.dtype)
    sequence = jnp.searchsorted(bounds[1:], row, side="right")
    place = row - bounds[sequence]
    rows = dense.at[sequence, place].get(mode="clip")
    is_there = (place < dense.shape[1]).reshape(-1, *(1,) * (dense.ndim - 2))
    return jnp.where(is_there, rows, 0)
