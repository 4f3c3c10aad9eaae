"""Products by groups of rows, as a mixture of experts needs them: each group has its own matrix.

`by_rows` and `by_contraction` are also what `torch_xla`'s `gmm` and `tgmm` compute. TPUs and GPUs
have XLA's ragged product. XLA writes it on the CPU as one product per group of all rows, which is
as many times the work as there are groups; there a loop goes through the tiles of each group.
"""

import jax
import jax.numpy as jnp
import torch
from jax import lax

from torch_xdist.ops.operands import wide
from torch_xdist.ops.table import lowers

# Rows of one turn of the loop.
_TILE = 128
_CONTRACTED = lax.RaggedDotDimensionNumbers((((0,), (0,)), ((), ())), [0], [])


def by_rows(lhs: jax.Array, rhs: jax.Array, sizes: jax.Array) -> jax.Array:
    """[m, k] times, for each group of rows, its own of [g, k, n]: [m, n].

    `sizes` [g] says how many rows each group has, in order; rows of no group give 0. The result is
    in the dtype the products are summed in.
    """
    dtype = wide(lhs.dtype)

    def ragged(lhs: jax.Array, rhs: jax.Array, sizes: jax.Array) -> jax.Array:
        return lax.ragged_dot(lhs, rhs, sizes, preferred_element_type=dtype)

    return lax.platform_dependent(lhs, rhs, sizes, cpu=_walk_rows, default=ragged)


def by_contraction(lhs: jax.Array, rhs: jax.Array, sizes: jax.Array) -> jax.Array:
    """[m, k] transposed times [m, n], summed over the rows of each group: [g, k, n]."""
    dtype = wide(lhs.dtype)

    def ragged(lhs: jax.Array, rhs: jax.Array, sizes: jax.Array) -> jax.Array:
        return lax.ragged_dot_general(lhs, rhs, sizes, _CONTRACTED, preferred_element_type=dtype)

    return lax.platform_dependent(lhs, rhs, sizes, cpu=_walk_contraction, default=ragged)


def _visits(rows: int, sizes: jax.Array, tile: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Which rows of which group each turn of the loop takes.

    Returns (group [v], first row of the tile [v], first row and end of the group's part of it
    [v, 2]). A tile is visited once for each group that has rows in it; turns that are left over
    have an empty part.
    """
    ends = jnp.minimum(jnp.cumsum(sizes), rows)
    starts = jnp.concatenate([jnp.zeros(1, ends.dtype), ends[:-1]])
    tiles = -(-rows // tile)
    counts = jnp.where(ends > starts, (ends - 1) // tile - starts // tile + 1, 0)
    done = jnp.cumsum(counts)
    turns = jnp.arange(tiles + sizes.shape[0] - 1)
    group = jnp.minimum(jnp.searchsorted(done, turns, side="right"), sizes.shape[0] - 1)
    place = starts[group] // tile + turns - (done[group] - counts[group])
    first = jnp.minimum(place, tiles - 1) * tile
    low = jnp.maximum(first, starts[group])
    high = jnp.where(turns < done[-1], jnp.minimum(first + tile, ends[group]), low)
    return group, first, jnp.stack([low, high], axis=-1)


def _tiled(x: jax.Array, tile: int) -> jax.Array:
    """`x` with zeros below it, so that its rows are whole tiles."""
    return jnp.pad(x, ((0, -x.shape[0] % tile), (0, 0)))


def _part(
    x: jax.Array, first: jax.Array, part: jax.Array, tile: int
) -> tuple[jax.Array, jax.Array]:
    """(a tile of rows [t, k], which of them are in `part` [t, 1])."""
    rows = (first + jnp.arange(tile))[:, None]
    taken = lax.dynamic_slice_in_dim(x, first, tile)
    return taken, (rows >= part[0]) & (rows < part[1])


def _walk_rows(lhs: jax.Array, rhs: jax.Array, sizes: jax.Array) -> jax.Array:
    rows, dtype = lhs.shape[0], wide(lhs.dtype)
    out = jnp.zeros((rows, rhs.shape[2]), dtype)
    if not rows or not rhs.size or not sizes.size:
        return out
    tile = min(_TILE, rows)
    group, first, part = _visits(rows, sizes, tile)
    padded = _tiled(lhs, tile)

    def turn(i: jax.Array, out: jax.Array) -> jax.Array:
        taken, inside = _part(padded, first[i], part[i], tile)
        matrix = lax.dynamic_index_in_dim(rhs, group[i], keepdims=False)
        found = jnp.dot(taken, matrix, preferred_element_type=dtype)
        old = lax.dynamic_slice_in_dim(out, first[i], tile)
        return lax.dynamic_update_slice_in_dim(out, jnp.where(inside, found, old), first[i], 0)

    return lax.fori_loop(0, len(group), turn, _tiled(out, tile))[:rows]


def _walk_contraction(lhs: jax.Array, rhs: jax.Array, sizes: jax.Array) -> jax.Array:
    rows, dtype = lhs.shape[0], wide(lhs.dtype)
    out = jnp.zeros((sizes.shape[0], lhs.shape[1], rhs.shape[1]), dtype)
    if not rows or not out.size:
        return out
    tile = min(_TILE, rows)
    group, first, part = _visits(rows, sizes, tile)
    lhs, rhs = _tiled(lhs, tile), _tiled(rhs, tile)

    def turn(i: jax.Array, out: jax.Array) -> jax.Array:
        left, inside = _part(lhs, first[i], part[i], tile)
        right, _ = _part(rhs, first[i], part[i], tile)
        # Both sides: 0 times what another group holds would be nan where that is infinite.
        left, right = (jnp.where(inside, x, jnp.zeros_like(x)) for x in (left, right))
        found = lax.dot_general(left, right, (((0,), (0,)), ((), ())), preferred_element_type=dtype)
        return out.at[group[i]].add(found)

    return lax.fori_loop(0, len(group), turn, out)


def sizes_of(ends: jax.Array) -> jax.Array:
    """How many rows each group has, of where the groups end."""
    return jnp.diff(ends, prepend=jnp.zeros(1, ends.dtype))


@lowers("aten._grouped_mm.default", shaped=True)
def grouped_mm(
    self: jax.Array,
    mat2: jax.Array,
    offs: jax.Array | None = None,
    bias: jax.Array | None = None,
    out_dtype: torch.dtype | None = None,
) -> jax.Array:
    """One product per group; where both are matrices, the contracted dim is the divided one.

    What lies behind the last offset, which CPU torch leaves as it finds it, is 0.
    """
    if offs is None:
        found = jnp.matmul(self, mat2, preferred_element_type=wide(self.dtype))
    elif self.ndim == mat2.ndim:
        found = by_contraction(self.T, mat2, sizes_of(offs))
    elif self.ndim == 2:
        found = by_rows(self, mat2, sizes_of(offs))
    else:
        found = by_rows(mat2.T, self.swapaxes(1, 2), sizes_of(offs)).T
    return found.astype(self.dtype)
