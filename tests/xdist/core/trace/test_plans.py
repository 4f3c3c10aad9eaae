"""Binding a lowering to a plan: its results must be those torch announced."""

import jax.numpy as jnp
import pytest
import torch

from torch_xdist.core.trace.plans import fit, jax_plan
from torch_xdist.core.trace.tensor_types import dense_type

KIND = dense_type((2,), torch.float32)
PLAN = jax_plan("twice", lambda x: x * 2, [KIND], [KIND])


def test_results_get_the_dtype_that_torch_says():
    (found,) = fit(PLAN, jnp.ones(2, jnp.int32))
    assert found.dtype == jnp.float32 and found.tolist() == [1, 1]


def test_a_lowering_of_another_number_of_results_is_refused():
    with pytest.raises(TypeError, match="twice: its lowering gave 2 results, not 1"):
        fit(PLAN, [jnp.ones(2), jnp.ones(2)])


def test_a_lowering_of_another_shape_is_refused():
    words = r"twice: result 0 of its lowering has shape \(3,\), torch says \(2,\)"
    with pytest.raises(TypeError, match=words):
        fit(PLAN, jnp.ones(3))
