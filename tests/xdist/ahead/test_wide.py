"""Operations on arrays of 64-bit integers are seen before XLA splits them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from torch_xdist.ahead import wide

INDEX = jax.ShapeDtypeStruct((4,), np.int64)


@pytest.mark.parametrize(
    ("function", "found"),
    [
        (lambda i: i + 1, {"add": 1}),
        (lambda i: i.astype(np.int32) + 1, {}),
        (lambda i: (i.astype(np.int32) + 1).astype(np.int64).reshape(2, 2), {}),
        (
            lambda i: i.astype(np.int32).astype(np.int64) > 2,
            {"compare": 1},
        ),
        (lambda i: i[:1] + 1, {"slice": 1}),
        (lambda i: jnp.where(i > 0, 1.0, 2.0), {"compare": 1}),
    ],
    ids="computed cast out compared one result".split(),
)
def test_what_computes_with_them_is_counted(function, found):
    with jax.enable_x64(True):
        module = jax.jit(function).lower(INDEX).compiler_ir("stablehlo")
    assert wide.inside(module) == found
