"""Keys of random rows: JAX's Threefry, and on the CPU the same numbers by straight-line code.

For CPUs JAX hashes in a loop of five turns, whose arrays go through memory in each; XLA takes a
quarter of the time for the hash written out, to compile and to run it.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.random import define_prng_impl

from torch_xdist.ops import forms

Key = jax.Array
# Threefry2x32 of 20 rounds: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011.
_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = np.uint32(0x1BD11BDA)
_TURNS = 5
_WORD = 32
_THREEFRY = "threefry2x32"


def folded(seed: Any, counter: Any) -> Key:
    """The key of a seed with a counter folded into it, or those of as many: integers of a shape."""
    seed, counter = jnp.asarray(seed), jnp.asarray(counter)
    if not _is_ours():
        each = jax.vmap(folded) if seed.shape else _fold_in_own
        return each(seed, counter)
    if not seed.shape:
        # As equations of JAX's, by which small programs are known.
        return jax.random.fold_in(jax.random.key(seed, impl=_straight()), counter)
    # In one go, which is one kernel: the keys in between would be an array.
    made = _apart(_hash(_words(seed), *_words(counter.astype(np.uint32))))
    return jax.random.wrap_key_data(made, impl=_straight())


def own(key: Key) -> Key:
    """The same key of JAX's own generator, for a loop that folds numbers into it or splits it."""
    if "xfry" not in str(key.dtype):
        return key
    return jax.random.wrap_key_data(jax.random.key_data(key), impl=_THREEFRY)


def _fold_in_own(seed: jax.Array, counter: jax.Array) -> Key:
    return jax.random.fold_in(jax.random.key(seed), counter)


def _is_ours() -> bool:
    asked = jax.config.jax_default_prng_impl  # type: ignore[attr-defined]
    return forms.chosen().hashes_straight and bool(asked == _THREEFRY)


@functools.cache
def _straight() -> Any:
    return define_prng_impl(
        key_shape=(2,),
        seed=_seed,
        split=_split,
        random_bits=_bits,
        fold_in=_fold_in,
        name="straight_threefry2x32",
        tag="xfry",
    )


def _hash(key: Sequence[jax.Array], first: jax.Array, second: jax.Array) -> list[jax.Array]:
    """Two words for each two words of a counter: uint32 of the counters' shape."""
    full = functools.cache(functools.partial(lax.full, first.shape, dtype=np.uint32))
    words = [jnp.broadcast_to(part, first.shape) for part in (*key, key[0] ^ key[1] ^ _PARITY)]
    x, y = lax.add(first, words[0]), lax.add(second, words[1])
    for turn in range(_TURNS):
        for by in _ROTATIONS[turn % 2]:
            x = lax.add(x, y)
            high, low = lax.shift_left(y, full(by)), lax.shift_right_logical(y, full(_WORD - by))
            y = lax.bitwise_xor(x, lax.bitwise_or(high, low))
        x = lax.add(x, words[(turn + 1) % 3])
        y = lax.add(y, lax.add(words[(turn + 2) % 3], full(turn + 1)))
    return [x, y]


def _counters(shape: Sequence[int]) -> tuple[jax.Array, jax.Array]:
    """The place of each entry, in row-major order: its high and its low word.

    They are added up from those along each dim, so that a part of them needs nothing of the rest.
    """
    is_long = math.prod(shape) > 1 << _WORD
    dtype = np.uint64 if is_long else np.uint32
    place = lax.full(shape, 0, dtype)
    for dim in range(len(shape)):
        step = lax.full(shape, math.prod(shape[dim + 1 :]), dtype)
        place = lax.add(place, lax.mul(lax.broadcasted_iota(dtype, shape, dim), step))
    if not is_long:
        return lax.full(shape, 0, dtype), place
    high = lax.shift_right_logical(place, lax.full(shape, _WORD, dtype))
    return lax.convert_element_type(high, np.uint32), lax.convert_element_type(place, np.uint32)


def _words(number: jax.Array) -> tuple[jax.Array, jax.Array]:
    wide = lax.convert_element_type(number, np.uint64)
    high = lax.shift_right_logical(wide, lax.full(wide.shape, _WORD, np.uint64))
    return lax.convert_element_type(high, np.uint32), lax.convert_element_type(wide, np.uint32)


def _seed(seed: jax.Array) -> jax.Array:
    return jnp.stack(_words(seed))


def _fold_in(key: jax.Array, data: jax.Array) -> jax.Array:
    return _apart(_hash(key, *_words(jnp.asarray(data, np.uint32))))


def _apart(words: Sequence[jax.Array]) -> jax.Array:
    """Keys of these words, made outside of the loops of what is drawn by them.

    LLVM would take half a second for both hashes in one. XLA has no code for a barrier in the body
    of a loop of ours.
    """
    return lax.optimization_barrier(jnp.stack(words, axis=-1))


def _split(key: jax.Array, shape: Sequence[int]) -> jax.Array:
    return jnp.stack(_hash(key, *_counters(shape)), axis=-1)


def _bits(key: jax.Array, width: int, shape: Sequence[int]) -> jax.Array:
    first, second = _hash(key, *_counters(shape))
    if width == 2 * _WORD:
        high, low = (lax.convert_element_type(part, np.uint64) for part in (first, second))
        return lax.bitwise_or(lax.shift_left(high, lax.full(shape, _WORD, np.uint64)), low)
    return lax.convert_element_type(lax.bitwise_xor(first, second), np.dtype(f"uint{width}"))
