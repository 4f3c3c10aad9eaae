"""How wide positions are inside a program: those that indices, sorting and pooling count with.

torch's are int64, and so is what goes in and comes out. A TPU computes with 32 bits: of each array
of 64 XLA makes two there, and each comparison, sum or exchange of them becomes several. So a
program for a TPU counts in int32 where the number of things that are counted allows it. Elsewhere
nothing is cast.

Set by `core/trace/global_state.py` before a program is made, by `platforms.Choices`.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

_NARROW = np.iinfo(np.int32)
_counts_narrowly = [False]


def count_narrowly(is_wanted: bool) -> None:
    """Whether programs made from now on count in int32 where they can."""
    _counts_narrowly[0] = is_wanted


def are_narrow() -> bool:
    """Whether they do."""
    return _counts_narrowly[0]


def width(count: int) -> Any:
    """The dtype in which `count` things, and the place behind them, are counted."""
    return np.int32 if _counts_narrowly[0] and count < _NARROW.max else np.int64


def counted(count: int) -> jax.Array:
    """[count]: 0, 1, 2, ..."""
    return jnp.arange(count, dtype=np.int32 if width(count) == np.int32 else None)


def narrowed(places: jax.Array, count: int) -> jax.Array:
    """Places among `count` things, or negative ones from their end, to read at.

    One that is out of range is another one that is out of range or in it: what is read there means
    nothing. Where programs do not count narrowly, the places as they are.
    """
    if places.dtype in (jnp.int64, jnp.uint32, jnp.uint64) and width(count) == np.int32:
        return places.astype(jnp.int32)
    return places


def bounded(places: jax.Array, count: int) -> jax.Array:
    """As `narrowed`, to write at: one that is out of range still is."""
    if places.dtype in (jnp.int64, jnp.uint32, jnp.uint64) and width(count) == np.int32:
        return jnp.clip(places, _NARROW.min, _NARROW.max).astype(jnp.int32)
    return places
