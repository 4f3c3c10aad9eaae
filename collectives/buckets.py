"""Flat buckets: many small arrays of one dtype as few large ones, inside a program.

A bucket closes before it would pass the cap, so a single larger array has a bucket of its own and
needs no copy.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

CAP_BYTES = 64 * 2**20


def plan(sizes: Sequence[tuple[int, int]], cap_bytes: int = CAP_BYTES) -> list[list[int]]:
    """Which arrays share a bucket: indices, in order. `sizes` holds (elements, bytes of each)."""
    buckets: list[list[int]] = []
    filled = 0
    for index, (elements, each) in enumerate(sizes):
        size = elements * each
        if not buckets or filled + size > cap_bytes:
            buckets.append([])
            filled = 0
        buckets[-1].append(index)
        filled += size
    return buckets


def joined(arrays: Sequence[jax.Array]) -> jax.Array:
    """One flat array of all elements; a single array stays as it is."""
    if len(arrays) == 1:
        return arrays[0]
    return jnp.concatenate([array.reshape(-1) for array in arrays])


def separated(flat: jax.Array, shapes: Sequence[tuple[int, ...]]) -> list[jax.Array]:
    """The arrays of these shapes that `joined` put together."""
    if len(shapes) == 1:
        return [flat.reshape(shapes[0])]
    results, start = [], 0
    for shape in shapes:
        count = 1
        for size in shape:
            count *= size
        results.append(flat[start : start + count].reshape(shape))
        start += count
    return results
