"""Embedding bags: rows of a table summed, averaged or maximised over runs of indices.

`offsets` [b] says where each bag begins in `indices` [n]. Modes: 0 sum, 1 mean, 2 max. The helper
results have the shapes of torch's kernels for accelerators, which its meta kernel promises.
"""

import jax
import jax.numpy as jnp

from torch_xdist.ops import positions
from torch_xdist.ops.cumulative import cumsum
from torch_xdist.ops.index import read_rows
from torch_xdist.ops.operands import widened
from torch_xdist.ops.scatter import reduce_rows, write_rows
from torch_xdist.ops.table import lowers

_MEAN, _MAX = 1, 2


def _bag_of(offsets: jax.Array, count: int) -> jax.Array:
    """[count]: the bag in which each index stands."""
    # How many bags have begun there, less one: the sort of a search takes ten times as long.
    begun = write_rows(jnp.zeros(count, offsets.dtype), offsets, jnp.ones_like(offsets), "add")
    return cumsum(begun, 0) - 1


def _counted(indices: jax.Array, padding_idx: int) -> jax.Array:
    """[n]: whether an index takes part; a table's padding row does not."""
    return indices != padding_idx if padding_idx >= 0 else jnp.ones(indices.shape, bool)


def _add_to_bags(bags: int, bag: jax.Array, values: jax.Array) -> jax.Array:
    return write_rows(jnp.zeros((bags, *values.shape[1:]), values.dtype), bag, values, "add")


@lowers("aten._embedding_bag.default", "aten._embedding_bag_forward_only.default")
def embedding_bag(
    weight: jax.Array,
    indices: jax.Array,
    offsets: jax.Array,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: jax.Array | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """The bags [b, d], the bag of each index [n], the bag sizes, the rows of the maxima."""
    indices = positions.narrowed(indices, weight.shape[0])
    offsets = positions.narrowed(offsets, indices.shape[0])
    bags = offsets.shape[0] - int(include_last_offset)
    bag = _bag_of(offsets[:bags], indices.shape[0]).astype(indices.dtype)
    counted = _counted(indices, padding_idx)
    rows = widened(read_rows(weight, indices, 0))
    if padding_idx >= 0:
        sizes = _add_to_bags(bags, bag, counted.astype(indices.dtype))
    else:
        ends = jnp.append(offsets[1:bags], indices.shape[0])
        sizes = (ends - offsets[:bags]).astype(indices.dtype)
    bag_size = jnp.pad(sizes, (0, offsets.shape[0] - bags))
    if mode == _MAX:
        out, maxima = _max_bags(rows, indices, bag, counted, bags)
        return out, bag, bag_size, maxima
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.astype(rows.dtype)[:, None]
    out = _add_to_bags(bags, bag, jnp.where(counted[:, None], rows, 0))
    if mode == _MEAN:
        out = out / jnp.maximum(sizes, 1).astype(out.dtype)[:, None]
    return out, bag, bag_size, jnp.zeros(0, indices.dtype)


def _max_bags(
    rows: jax.Array, indices: jax.Array, bag: jax.Array, counted: jax.Array, bags: int
) -> tuple[jax.Array, jax.Array]:
    """The maxima [b, d], 0 for an empty bag, and the table's row of the first of each."""
    count, width = rows.shape
    if not count:
        return jnp.zeros((bags, width), rows.dtype), jnp.zeros((bags, width), indices.dtype)
    spots = jnp.where(counted, bag, bags)
    blank = jnp.full((bags, width), -jnp.inf, rows.dtype)
    best = reduce_rows(blank, spots, rows, "amax")
    order = positions.counted(count)[:, None]
    hits = jnp.where(rows == read_rows(best, bag, 0), order, count)
    first = reduce_rows(jnp.full((bags, width), count, order.dtype), spots, hits, "amin")
    maxima = jnp.where(first < count, read_rows(indices, jnp.minimum(first, count - 1), 0), 0)
    return jnp.where(jnp.isneginf(best) & (first == count), 0, best), maxima


@lowers("aten._embedding_bag_dense_backward.default")
def embedding_bag_dense_backward(
    grad: jax.Array,
    indices: jax.Array,
    offset2bag: jax.Array,
    bag_size: jax.Array,
    maximum_indices: jax.Array,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    per_sample_weights: jax.Array | None,
    padding_idx: int = -1,
) -> jax.Array:
    """Bag gradients [b, d] to the table's gradient [num_weights, d]."""
    grad = widened(grad)
    table = jnp.zeros((num_weights, grad.shape[1]), grad.dtype)
    if mode == _MAX:
        filled = (bag_size[: grad.shape[0]] > 0)[:, None]
        places = maximum_indices * grad.shape[1] + jnp.arange(grad.shape[1])
        values = jnp.where(filled, grad, 0).reshape(-1)
        return write_rows(table.reshape(-1), places.reshape(-1), values, "add").reshape(table.shape)
    rows = read_rows(grad, offset2bag, 0)
    if mode == _MEAN:
        rows = rows / read_rows(jnp.maximum(bag_size, 1), offset2bag, 0).astype(rows.dtype)[:, None]
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.astype(rows.dtype)[:, None]
    if scale_grad_by_freq:
        ones = jnp.ones(indices.shape, rows.dtype)
        rows = rows / read_rows(_add_to_bags(num_weights, indices, ones), indices, 0)[:, None]
    places = jnp.where(_counted(indices, padding_idx), indices, num_weights)
    return write_rows(table, places, rows, "add")


@lowers("aten._embedding_bag_backward.default")
def embedding_bag_backward(
    grad: jax.Array,
    indices: jax.Array,
    offsets: jax.Array,
    offset2bag: jax.Array,
    bag_size: jax.Array,
    maximum_indices: jax.Array,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: jax.Array | None,
    padding_idx: int = -1,
) -> jax.Array:
    bag = _bag_of(offsets, indices.shape[0])
    if offset2bag.shape == indices.shape:
        bag = offset2bag
    return embedding_bag_dense_backward(
        grad,
        indices,
        bag,
        bag_size,
        maximum_indices,
        num_weights,
        scale_grad_by_freq,
        mode,
        per_sample_weights,
        padding_idx,
    )


@lowers("aten._embedding_bag_per_sample_weights_backward.default")
def embedding_bag_per_sample_weights_backward(
    grad: jax.Array,
    weight: jax.Array,
    indices: jax.Array,
    offsets: jax.Array,
    offset2bag: jax.Array,
    mode: int,
    padding_idx: int = -1,
) -> jax.Array:
    """[n]: the product of each index's row with its bag's gradient."""
    bag = offset2bag if offset2bag.shape == indices.shape else _bag_of(offsets, indices.shape[0])
    rows = widened(read_rows(weight, indices, 0))
    dots = jnp.sum(rows * widened(read_rows(grad, bag, 0)), axis=1)
    return jnp.where(_counted(indices, padding_idx), dots, 0)
