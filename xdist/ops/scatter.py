"""Rows that write by an index: `scatter`, `index_put`, `index_add` and their relatives.

Everything becomes one scatter of whole rows, or of elements of a flat array: XLA runs those many
times faster than scatters into inner dims. An index out of range writes nothing. Sums in half
precision are kept in float32 until the end.
"""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_xdist.ops.index import read_rows, wrapped
from torch_xdist.ops.operands import widened
from torch_xdist.ops.positions import bounded, narrowed, width
from torch_xdist.ops.table import lowers

Scalar = Any  # a Python number, or a 0-d array where the value is an input of the program
_REDUCTIONS = {
    "add": "add",
    "sum": "add",
    "mean": "add",
    "multiply": "multiply",
    "prod": "multiply",
    "amax": "max",
    "amin": "min",
    "set": "set",
}
_OF_BOOLS = {"add": "max", "multiply": "min"}  # XLA adds numbers alone, torch bools as well.


def write_rows(rows: jax.Array, index: jax.Array, updates: jax.Array, how: str) -> jax.Array:
    """[n, ...], index [m], updates [m, ...]: rows with the updates set, added, ... at `index`."""
    if rows.dtype == jnp.bool_:
        how = _OF_BOOLS.get(how, how)
    write = getattr(rows.at[bounded(index, rows.shape[0])], how)
    return write(updates.astype(rows.dtype), mode="drop", wrap_negative_indices=False)


def reduce_rows(
    rows: jax.Array, index: jax.Array, updates: jax.Array, reduce: str, include_self: bool = True
) -> jax.Array:
    """`write_rows` for torch's names of reductions; without `include_self` the old rows go."""
    how = _REDUCTIONS[reduce]
    if how == "set":
        return write_rows(rows, index, updates, how)
    out, updates = widened(rows), widened(updates)
    if not include_self:
        neutral = jnp.full(updates.shape, _neutral(how, out.dtype), out.dtype)
        out = write_rows(out, index, neutral, "set")
    out = write_rows(out, index, updates, how)
    return _mean(out, index, updates, include_self) if reduce == "mean" else out


def _neutral(how: str, dtype: Any) -> Any:
    """The value that leaves others as they are under a reduction."""
    if how in ("add", "multiply"):
        return 0 if how == "add" else 1
    if dtype == jnp.bool_:
        return how == "min"
    if jnp.issubdtype(dtype, jnp.floating):
        return -np.inf if how == "max" else np.inf
    return jnp.iinfo(dtype).min if how == "max" else jnp.iinfo(dtype).max


def _mean(sums: jax.Array, index: jax.Array, updates: jax.Array, include_self: bool) -> jax.Array:
    whole = width(index.size + 1)
    start = jnp.full(sums.shape[:1], int(include_self), whole)
    counts = jnp.maximum(write_rows(start, index, jnp.ones(index.shape, whole), "add"), 1)
    counts = counts.reshape(-1, *(1,) * (sums.ndim - 1))
    # torch divides integers rounding down.
    divides_down = not jnp.issubdtype(sums.dtype, jnp.inexact)
    return sums // counts.astype(sums.dtype) if divides_down else sums / counts.astype(sums.dtype)


def write_elements(
    self: jax.Array,
    dim: int,
    index: jax.Array,
    src: jax.Array,
    reduce: str,
    include_self: bool = True,
) -> jax.Array:
    """self[..., index[i], ...] takes src[i]: `index` [...] lies within `src` in every dim."""
    if not index.size:
        return self
    shape = self.shape or (1,)
    whole = width(self.size)
    index = index.reshape(index.shape or (1,)).astype(whole)
    src = src.reshape(src.shape or (1,))[tuple(slice(n) for n in index.shape)]
    places, step = jnp.zeros((), whole), 1
    for d in reversed(range(len(shape))):
        here = index if d == dim % len(shape) else lax.broadcasted_iota(whole, index.shape, d)
        places, step = places + here * step, step * shape[d]
    flat = reduce_rows(self.reshape(-1), places.reshape(-1), src.reshape(-1), reduce, include_self)
    return flat.reshape(self.shape)


def _filled(value: Scalar, index: jax.Array, dtype: Any) -> jax.Array:
    return jnp.broadcast_to(jnp.asarray(value).astype(dtype), index.shape)


@lowers("aten.scatter.src")
def scatter_src(self: jax.Array, dim: int, index: jax.Array, src: jax.Array) -> jax.Array:
    return write_elements(self, dim, index, src, "set", True)


@lowers("aten.scatter.value")
def scatter_value(self: jax.Array, dim: int, index: jax.Array, value: Scalar) -> jax.Array:
    return write_elements(self, dim, index, _filled(value, index, self.dtype), "set", True)


@lowers("aten.scatter.reduce")
def scatter_src_reduce(
    self: jax.Array, dim: int, index: jax.Array, src: jax.Array, *, reduce: str
) -> jax.Array:
    return write_elements(self, dim, index, src, reduce, True)


@lowers("aten.scatter.value_reduce")
def scatter_value_reduce(
    self: jax.Array, dim: int, index: jax.Array, value: Scalar, *, reduce: str
) -> jax.Array:
    return write_elements(self, dim, index, _filled(value, index, self.dtype), reduce, True)


@lowers("aten.scatter_add.default")
def scatter_add(self: jax.Array, dim: int, index: jax.Array, src: jax.Array) -> jax.Array:
    return write_elements(self, dim, index, src, "add", True)


@lowers("aten.scatter_reduce.two")
def scatter_reduce(
    self: jax.Array,
    dim: int,
    index: jax.Array,
    src: jax.Array,
    reduce: str,
    *,
    include_self: bool = True,
) -> jax.Array:
    return write_elements(self, dim, index, src, reduce, include_self)


@lowers(
    "aten.index_put.default",
    "aten._unsafe_index_put.default",
    "aten.index_put.hacked_twin",
    "aten._unsafe_index_put.hacked_twin",
)
def index_put(
    self: jax.Array,
    indices: Sequence[jax.Array | None],
    values: jax.Array,
    accumulate: bool = False,
) -> jax.Array:
    """self[indices] = values, or += with `accumulate`; `values` broadcast to self[indices]."""
    given = [i for i in indices if i is not None]
    if len(given) == 1 and given[0].dtype in (jnp.bool_, jnp.uint8):
        before = next(d for d, i in enumerate(indices) if i is not None)
        return _masked_put(self, before, given[0] != 0, values, accumulate)
    dims = [d for d, i in enumerate(indices) if i is not None]
    if not dims:
        whole = jnp.broadcast_to(values, self.shape).astype(self.dtype)
        return self + whole if accumulate else whole
    found = jnp.broadcast_arrays(*(wrapped(indices[d], self.shape[d]) for d in dims))
    block, rest = found[0].shape, [d for d in range(self.ndim) if d not in dims]
    if not math.prod(block) or not self.size:
        return self
    # The dims of the indices stand together in self[indices]: first, or where they were.
    together = dims == list(range(dims[0], dims[0] + len(dims)))
    first = dims[0] if together else 0
    shape = [self.shape[d] for d in rest]
    shape[first:first] = block
    updates = jnp.moveaxis(
        jnp.broadcast_to(values, shape), range(first, first + len(block)), range(len(block))
    )
    places = jnp.zeros((), width(math.prod(self.shape[d] for d in dims)))
    for d, i in zip(dims, found, strict=True):
        places = places * self.shape[d] + i.astype(places.dtype)
    order = [*dims, *rest]
    moved = self.transpose(order)
    rows = moved.reshape(math.prod(self.shape[d] for d in dims), -1)
    rows = reduce_rows(
        rows, places.reshape(-1), updates.reshape(-1, rows.shape[1]), "add" if accumulate else "set"
    )
    return rows.reshape(moved.shape).transpose(np.argsort(order))


def _masked_put(
    self: jax.Array, dim: int, mask: jax.Array, values: jax.Array, accumulate: bool
) -> jax.Array:
    """`index_put` with one mask, which stands for the dims from `dim` on: no shape needs data."""
    if not self.size:
        return self
    lead, tail = self.shape[:dim], self.shape[dim + mask.ndim :]
    spots = mask.reshape(-1)
    rows = self.reshape(*lead, spots.size, *tail)
    # `values` broadcast to [lead, count of true, tail]; the k-th true spot takes row k.
    values = values.reshape(*(1,) * (rows.ndim - values.ndim), *values.shape)
    if values.shape[dim] > 1:
        order = jnp.cumsum(spots, dtype=width(spots.size)) - 1
        values = read_rows(values, jnp.maximum(order, 0), dim)
    elif not values.size:
        return self
    new = rows + values if accumulate else values.astype(self.dtype)
    here = lax.broadcast_in_dim(spots, rows.shape, (dim,))
    return jnp.where(here, new, rows).reshape(self.shape)


@lowers("aten._unsafe_masked_index_put_accumulate.default")
def unsafe_masked_index_put_accumulate(
    self: jax.Array, mask: jax.Array, indices: Sequence[jax.Array | None], values: jax.Array
) -> jax.Array:
    """`self[indices] += values` where the mask holds; indices elsewhere mean nothing."""
    if not self.size:
        return self
    inside = [
        None if i is None else jnp.clip(i, -self.shape[d], self.shape[d] - 1)
        for d, i in enumerate(indices)
    ]
    return index_put(self, inside, jnp.where(mask, values, 0).astype(values.dtype), True)


def _along(
    self: jax.Array,
    dim: int,
    index: jax.Array,
    source: jax.Array,
    reduce: str,
    include_self: bool = True,
) -> jax.Array:
    """Row `index[i]` of `self` along `dim` takes row i of `source`."""
    index = index.reshape(-1)
    if not index.size or not self.size:
        return self
    if not self.ndim:
        out = reduce_rows(self[None], index, source.reshape(-1), reduce, include_self)
        return out[0]
    source = source if source.ndim else source.reshape(1)

    def by_rows(self: jax.Array, index: jax.Array, source: jax.Array) -> jax.Array:
        rows = jnp.moveaxis(self, dim, 0), index, jnp.moveaxis(source, dim, 0)
        return jnp.moveaxis(reduce_rows(*rows, reduce, include_self), 0, dim)

    if self.ndim == 1 or dim % self.ndim != self.ndim - 1:
        return by_rows(self, index, source)

    def by_elements(self: jax.Array, index: jax.Array, source: jax.Array) -> jax.Array:
        # Rows of the last dim are columns: 1024 x 256 elements take 0.9 ms, transposed twice 1.5.
        is_here = (index >= 0) & (index < self.shape[dim])
        whole = jnp.broadcast_to(jnp.where(is_here, index, self.size), source.shape)
        return write_elements(self, dim, whole, source, reduce, include_self)

    return lax.platform_dependent(self, index, source, cpu=by_elements, default=by_rows)


@lowers("aten.index_add.default")
def index_add(
    self: jax.Array, dim: int, index: jax.Array, source: jax.Array, *, alpha: Scalar = 1
) -> jax.Array:
    if not (isinstance(alpha, int | float) and alpha == 1):
        source = source * jnp.asarray(alpha).astype(source.dtype)
    return _along(self, dim, index, source, "add")


@lowers("aten.index_copy.default")
def index_copy(self: jax.Array, dim: int, index: jax.Array, source: jax.Array) -> jax.Array:
    return _along(self, dim, index, source, "set")


@lowers("aten.index_reduce.default")
def index_reduce(
    self: jax.Array,
    dim: int,
    index: jax.Array,
    source: jax.Array,
    reduce: str,
    *,
    include_self: bool = True,
) -> jax.Array:
    return _along(self, dim, index, source, reduce, include_self)


@lowers("aten.index_fill.int_Scalar", "aten.index_fill.int_Tensor")
def index_fill(self: jax.Array, dim: int, index: jax.Array, value: Scalar) -> jax.Array:
    shape = list(self.shape)
    size = 1
    if shape:
        size, shape[dim] = shape[dim], index.size
    source = jnp.broadcast_to(jnp.asarray(value).astype(self.dtype), shape)
    return _along(self, dim, wrapped(index, size), source, "set")


@lowers("aten.put.default")
def put(
    self: jax.Array, index: jax.Array, source: jax.Array, accumulate: bool = False
) -> jax.Array:
    if not index.size:
        return self
    places = wrapped(index, self.size).reshape(-1)
    how = "add" if accumulate else "set"
    return reduce_rows(self.reshape(-1), places, source.reshape(-1), how).reshape(self.shape)


@lowers("aten.embedding_dense_backward.default")
def embedding_dense_backward(
    grad_output: jax.Array,
    indices: jax.Array,
    num_weights: int,
    padding_idx: int,
    scale_grad_by_freq: bool,
) -> jax.Array:
    """[..., d] and indices [...]: the gradient [num_weights, d]; `padding_idx` gets none."""
    grad = widened(grad_output.reshape(-1, grad_output.shape[-1]))
    places = narrowed(indices.reshape(-1), num_weights)
    if padding_idx >= 0:
        places = jnp.where(places == padding_idx, num_weights, places)
    if scale_grad_by_freq:
        counts = write_rows(
            jnp.zeros(num_weights, grad.dtype), places, jnp.ones(places.shape, grad.dtype), "add"
        )
        grad = grad / counts.at[places].get(mode="fill", fill_value=1)[:, None]
    return write_rows(jnp.zeros((num_weights, grad.shape[1]), grad.dtype), places, grad, "add")
