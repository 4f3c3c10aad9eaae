"""Flat buckets."""

import jax.numpy as jnp
import numpy as np

from torch_xdist.collectives import buckets


def test_a_bucket_closes_before_the_cap():
    assert buckets.plan([(10, 4), (10, 4), (30, 4), (1, 4)], cap_bytes=100) == [[0, 1], [2], [3]]
    assert buckets.plan([(5, 1), (5, 1)], cap_bytes=0) == [[0], [1]]
    assert buckets.plan([]) == []


def test_joined_arrays_come_apart_again():
    arrays = [jnp.arange(6.0).reshape(2, 3), jnp.float32(7), jnp.zeros((0, 2)), jnp.ones(2)]
    flat = buckets.joined(arrays)
    assert flat.shape == (9,)
    for array, again in zip(arrays, buckets.separated(flat, [a.shape for a in arrays])):
        np.testing.assert_array_equal(array, again)
