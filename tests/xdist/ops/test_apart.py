"""Rows that are read apart are the rows, and one kernel reads all of them."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from torch_xdist.ops import apart


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.int32, jnp.bool_])
@pytest.mark.parametrize("shape", [(4, 2, 3), (1, 5), (3,), (0, 2)])
def test_rows_are_those_of_the_array(shape, dtype):
    stacked = jnp.asarray(np.arange(np.prod(shape)).reshape(shape) % 5, dtype)
    found = jax.jit(apart.rows)(stacked)
    assert len(found) == shape[0]
    for one, row in zip(stacked, found, strict=True):
        assert one.dtype == row.dtype
        np.testing.assert_array_equal(one, row)


def test_places_are_not_known_before_the_program_runs():
    text = jax.jit(apart.rows).lower(jnp.zeros((4, 2, 3))).as_text()
    assert "stablehlo.dynamic_slice" in text
    assert text.count("stablehlo.optimization_barrier") == 4
    # Nor is a place that may be counted from the end.
    assert not re.search(r"stablehlo\.(slice|select)", text)
