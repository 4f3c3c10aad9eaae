"""The number of a given rank, without sorting, and the first place of a number.

No rows here. The order is that of order.py: nan above every number.
"""

import jax
import jax.numpy as jnp

from torch_xdist.ops.order import along, integer_keys

Pair = tuple[jax.Array, jax.Array]


def _key_of_rank(keys: jax.Array, rank: jax.Array | int) -> jax.Array:
    """The key that `rank` of the keys [.., n] stand before, found bit by bit: [.., 1]."""
    bits = keys.dtype.itemsize * 8
    unsigned = jnp.uint64 if bits == 64 else jnp.uint32
    top = jnp.asarray(1 << (bits - 1), unsigned)
    keys = jax.lax.bitcast_convert_type(keys, unsigned) ^ top

    def decide(step: jax.Array, found: jax.Array) -> jax.Array:
        tried = found | (top >> step.astype(unsigned))
        before = jnp.sum(keys < tried, axis=-1, keepdims=True)
        return jnp.where(before <= rank, tried, found)

    found = jax.lax.fori_loop(0, bits, decide, jnp.zeros((*keys.shape[:-1], 1), unsigned))
    return jax.lax.bitcast_convert_type(found ^ top, jnp.dtype(f"int{bits}"))


def first_place(hit: jax.Array, dim: int, keepdim: bool) -> jax.Array:
    """The first position along `dim` where `hit` is true: int64."""
    size = hit.shape[dim]
    narrow = jnp.int32 if size < 2**31 else jnp.int64
    places = jax.lax.broadcasted_iota(narrow, hit.shape, dim)
    found = jnp.min(jnp.where(hit, places, size), axis=dim, keepdims=keepdim)
    return found.astype(jnp.int64)


def picked(value: jax.Array, place: jax.Array, at: jax.Array, dim: int, keepdim: bool) -> Pair:
    """The entries of both arrays at the positions `at` (of size 1 along `dim`)."""
    value, place = along(value, at, dim), along(place, at, dim)
    return (value, place) if keepdim else (jnp.squeeze(value, dim), jnp.squeeze(place, dim))


def take_rank(self: jax.Array, rank: jax.Array | int, dim: int, keepdim: bool) -> Pair:
    """The number that `rank` others stand before along `dim`, and its first position.

    `rank` is one number, or an array of size 1 along `dim`. Cost: one pass for each bit.
    """
    keys = jnp.moveaxis(integer_keys(self), dim, -1)
    ranks = jnp.moveaxis(rank, dim, -1) if isinstance(rank, jax.Array) else rank
    hit = jnp.moveaxis(keys == _key_of_rank(keys, ranks), -1, dim)
    place = first_place(hit, dim, keepdim=True)
    value = along(self, place, dim)
    return (value, place) if keepdim else (jnp.squeeze(value, dim), jnp.squeeze(place, dim))
