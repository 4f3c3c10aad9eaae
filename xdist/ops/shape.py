"""Rows that move elements without computing: joining, repeating, flipping, writing into a part.

Writing into a slice or a diagonal is a pad or a select, never a scatter: those fuse.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_xdist.ops.positions import counted, width
from torch_xdist.ops.table import lowers
from torch_xdist.ops.views import INVERSES, Layout, slice_bounds, write_strided


@lowers("aten.clone.default", "aten.contiguous.default", "aten.lift.default")
def clone(self: jax.Array, *, memory_format: Any = None) -> jax.Array:
    return self


@lowers("aten._unsafe_view.default", "aten._reshape_copy.default")
def unsafe_view(self: jax.Array, size: Sequence[int]) -> jax.Array:
    return self.reshape(tuple(size))


@lowers("aten.cat.default")
def cat(tensors: Sequence[jax.Array], dim: int = 0) -> jax.Array:
    # torch leaves out tensors of shape (0,), whatever the shape of the others.
    parts = [t for t in tensors if t.shape != (0,)]
    if not parts:
        return jnp.concatenate(tensors)
    return jnp.concatenate([*parts], axis=dim).astype(jnp.result_type(*tensors))


@lowers("aten.stack.default")
def stack(tensors: Sequence[jax.Array], dim: int = 0) -> jax.Array:
    return jnp.stack(tensors, axis=dim)


@lowers("aten.flip.default")
def flip(self: jax.Array, dims: Sequence[int]) -> jax.Array:
    return jnp.flip(self, tuple(dims)) if self.ndim else self


@lowers("aten.roll.default")
def roll(self: jax.Array, shifts: Sequence[int], dims: Sequence[int] = ()) -> jax.Array:
    if not self.ndim or not self.size:
        return self
    if not dims:
        return jnp.roll(self, shifts[0])
    return jnp.roll(self, tuple(shifts), tuple(dims))


@lowers("aten.rot90.default")
def rot90(self: jax.Array, k: int = 1, dims: Sequence[int] = (0, 1)) -> jax.Array:
    return jnp.rot90(self, k, (dims[0], dims[1]))


@lowers("aten.repeat.default")
def repeat(self: jax.Array, repeats: Sequence[int]) -> jax.Array:
    return jnp.tile(self, tuple(repeats))


@lowers("aten.repeat_interleave.Tensor")
def repeat_interleave(repeats: jax.Array, *, output_size: int) -> jax.Array:
    """[n] -> [output_size]: i, `repeats[i]` times; without `output_size` torch's meta refuses."""
    ends = jnp.cumsum(repeats)
    places = jnp.arange(output_size, dtype=ends.dtype)
    return jnp.searchsorted(ends, places, side="right", method="sort")


@lowers("aten.block_diag.default")
def block_diag(tensors: Sequence[jax.Array]) -> jax.Array:
    blocks = [jnp.atleast_2d(t) for t in tensors]
    rows, cols = (sum(b.shape[d] for b in blocks) for d in (0, 1))
    out = jnp.zeros((rows, cols), jnp.result_type(*tensors))
    row = col = 0
    for block in blocks:
        out = lax.dynamic_update_slice(out, block.astype(out.dtype), (row, col))
        row, col = row + block.shape[0], col + block.shape[1]
    return out


@lowers("aten.trace.default")
def trace(self: jax.Array) -> jax.Array:
    # torch sums small integers and bools as int64.
    whole = jnp.issubdtype(self.dtype, jnp.integer) or self.dtype == jnp.bool_
    return jnp.sum(jnp.diagonal(self), dtype=jnp.int64 if whole else None)


def span(size: int, start: int | None, end: int | None, step: int) -> tuple[int, int]:
    """First position and number of positions of `start:end:step` in a dim of `size`."""
    first, last = slice_bounds(size, start, end)
    return first, len(range(first, last, step))


def spread(part: jax.Array, size: int, dim: int, start: int, step: int, fill: Any) -> jax.Array:
    """An array of `size` along `dim`, holding `part` at start, start + step, ...; else `fill`."""
    if not part.shape[dim]:
        shape = (*part.shape[:dim], size, *part.shape[dim + 1 :])
        return jnp.full(shape, fill, part.dtype)
    config = [(0, 0, 0)] * part.ndim
    used = (part.shape[dim] - 1) * step + 1
    config[dim] = (start, size - start - used, step - 1)
    return lax.pad(part, jnp.asarray(fill, part.dtype), config)


@lowers("aten.slice_scatter.default")
def slice_scatter(
    self: jax.Array,
    src: jax.Array,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> jax.Array:
    dim %= self.ndim
    first, count = span(self.shape[dim], start, end, step)
    if not count:
        return self
    src = src.astype(self.dtype)
    if step == 1:
        at = tuple(first if d == dim else 0 for d in range(self.ndim))
        return lax.dynamic_update_slice(self, src, at)
    inside = np.zeros(self.shape[dim], bool)
    inside[first : first + (count - 1) * step + 1 : step] = True
    mask = lax.broadcast_in_dim(jnp.asarray(inside), self.shape, (dim,))
    return jnp.where(mask, spread(src, self.shape[dim], dim, first, step, 0), self)


@lowers("aten.select_scatter.default")
def select_scatter(self: jax.Array, src: jax.Array, dim: int, index: int) -> jax.Array:
    dim %= self.ndim
    at = tuple(index % self.shape[dim] if d == dim else 0 for d in range(self.ndim))
    return lax.dynamic_update_slice(self, jnp.expand_dims(src.astype(self.dtype), dim), at)


@lowers("aten.slice_backward.default")
def slice_backward(
    grad_output: jax.Array, input_sizes: Sequence[int], dim: int, start: int, end: int, step: int
) -> jax.Array:
    dim %= len(input_sizes)
    first, _ = span(input_sizes[dim], start, end, step)
    return spread(grad_output, input_sizes[dim], dim, first, step, 0)


@lowers("aten.select_backward.default")
def select_backward(
    grad_output: jax.Array, input_sizes: Sequence[int], dim: int, index: int
) -> jax.Array:
    dim %= len(input_sizes)
    size = input_sizes[dim]
    return spread(jnp.expand_dims(grad_output, dim), size, dim, index % size, 1, 0)


def _on_diagonal(
    values: jax.Array, rest: jax.Array, offset: int, dim1: int, dim2: int
) -> jax.Array:
    """`rest` with `values` [..., k] on the diagonal of (dim1, dim2); k = its length."""
    dim1, dim2 = dim1 % rest.ndim, dim2 % rest.ndim
    out = jnp.moveaxis(rest, (dim1, dim2), (-2, -1))
    rows, cols = out.shape[-2:]
    if not values.size:
        return rest
    by_row = spread(values.astype(rest.dtype), rows, values.ndim - 1, max(-offset, 0), 1, 0)
    on = counted(cols)[None, :] - counted(rows)[:, None] == offset
    return jnp.moveaxis(jnp.where(on, by_row[..., None], out), (-2, -1), (dim1, dim2))


@lowers("aten.diagonal_scatter.default")
def diagonal_scatter(
    self: jax.Array, src: jax.Array, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> jax.Array:
    return _on_diagonal(src, self, offset, dim1, dim2)


INVERSES["aten.diagonal.default"] = diagonal_scatter


@lowers("aten.diagonal_backward.default")
def diagonal_backward(
    grad_output: jax.Array, input_sizes: Sequence[int], offset: int, dim1: int, dim2: int
) -> jax.Array:
    zeros = jnp.zeros(tuple(input_sizes), grad_output.dtype)
    return _on_diagonal(grad_output, zeros, offset, dim1, dim2)


@lowers("aten.diag_embed.default")
def diag_embed(self: jax.Array, offset: int = 0, dim1: int = -2, dim2: int = -1) -> jax.Array:
    ndim = self.ndim + 1
    shape = list(self.shape[:-1])
    for dim in sorted((dim1 % ndim, dim2 % ndim)):
        shape.insert(dim, self.shape[-1] + abs(offset))
    return _on_diagonal(self, jnp.zeros(tuple(shape), self.dtype), offset, dim1, dim2)


@lowers("aten.as_strided_scatter.default")
def as_strided_scatter(
    self: jax.Array,
    src: jax.Array,
    size: Sequence[int],
    stride: Sequence[int],
    storage_offset: int | None = None,
) -> jax.Array:
    """Arrays have no strides here: `self` counts as contiguous, starting at 0."""
    layout = Layout(tuple(size), tuple(stride), storage_offset or 0)
    owner = Layout((self.size,), (1,), 0)
    return write_strided(self, src.astype(self.dtype).reshape(size), owner=owner, layout=layout)


@lowers("aten.masked_scatter.default")
def masked_scatter(self: jax.Array, mask: jax.Array, source: jax.Array) -> jax.Array:
    shape = jnp.broadcast_shapes(self.shape, mask.shape)
    self, mask = jnp.broadcast_to(self, shape), jnp.broadcast_to(mask, shape)
    if not source.size:
        return self
    order = jnp.cumsum(mask.reshape(-1), dtype=width(mask.size)) - 1
    taken = source.reshape(-1).at[jnp.maximum(order, 0)].get(mode="promise_in_bounds")
    return jnp.where(mask, taken.reshape(shape), self)


@lowers("aten.masked_scatter_backward.default")
def masked_scatter_backward(
    grad_output: jax.Array, mask: jax.Array, sizes: Sequence[int]
) -> jax.Array:
    """The masked elements of the gradient in order, zeros behind them."""
    mask = jnp.broadcast_to(mask, grad_output.shape).reshape(-1)
    out = jnp.zeros(int(np.prod(sizes)), grad_output.dtype)
    place = jnp.where(mask, jnp.cumsum(mask, dtype=width(mask.size)) - 1, out.size)
    return out.at[place].set(grad_output.reshape(-1), mode="drop").reshape(tuple(sizes))
