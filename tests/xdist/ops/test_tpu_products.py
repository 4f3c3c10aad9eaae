"""Products and convolutions of 64-bit integers as a TPU has them, against XLA's own on the CPU."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from torch_xdist.ops import tpu_products

jax.config.update("jax_enable_x64", True)


def whole(*shape, dtype=np.int64):
    # Sums pass 2**63 and wrap around, as torch's do.
    return jnp.asarray(np.random.default_rng(0).integers(0, 2**62, shape).astype(dtype))


@pytest.mark.parametrize(
    ("lhs", "rhs", "numbers"),
    [
        ((3, 4), (4, 5), (((1,), (0,)), ((), ()))),
        ((2, 3, 4), (2, 4, 5), (((2,), (1,)), ((0,), (0,)))),
        ((4, 2, 3), (3, 5, 2, 4), (((0, 2), (3, 0)), ((1,), (2,)))),
        ((4,), (4,), (((0,), (0,)), ((), ()))),
        ((3, 0), (0, 2), (((1,), (0,)), ((), ()))),
    ],
    ids="matrices batches turned vectors empty".split(),
)
def test_a_product_is_that_of_xla(lhs, rhs, numbers):
    a, b = whole(*lhs), whole(*rhs)
    found = tpu_products.product(a, b, dimension_numbers=numbers)
    np.testing.assert_array_equal(found, lax.dot_general(a, b, numbers))


@pytest.mark.parametrize(
    ("images", "kernel", "said"),
    [
        ((2, 3, 7), (4, 3, 2), {"window_strides": (2,), "padding": [(1, 0)]}),
        ((2, 4, 5, 6), (6, 2, 3, 2), {"feature_group_count": 2, "rhs_dilation": (1, 2)}),
        ((1, 2, 4, 4), (3, 2, 2, 2), {"lhs_dilation": (2, 3), "padding": [(1, 2), (-1, 0)]}),
        ((1, 1, 2, 2, 2), (1, 1, 3, 1, 1), {}),
    ],
    ids="stride groups spread none".split(),
)
def test_a_convolution_is_that_of_xla(images, kernel, said):
    a, b = whole(*images), whole(*kernel)
    rank = len(images) - 2
    said = {"window_strides": (1,) * rank, "padding": [(0, 0)] * rank, **said}
    convolved = jax.make_jaxpr(lambda a, b: lax.conv_general_dilated(a, b, **said))(a, b)
    [equation] = convolved.eqns
    found = tpu_products.convolution(a, b, **equation.params)
    np.testing.assert_array_equal(found, lax.conv_general_dilated(a, b, **said))


def test_only_integers_of_64_bits_are_written_so():
    def text(dtype):
        shape = jax.ShapeDtypeStruct((4, 4), dtype)
        traced = jax.jit(jnp.matmul).trace(shape, shape)
        return traced.lower(lowering_platforms=("tpu",)).as_text()

    assert "dot_general" not in text(np.int64) and "reduce" in text(np.int64)
    assert "dot_general" in text(np.int32) and "dot_general" in text(np.float32)
