"""What the reductions of torch.distributed mean, on CPU tensors and on arrays."""

import jax.numpy as jnp
import pytest
import torch
from torch.distributed import ReduceOp
from torch_releases import premul_sum

from torch_xdist.ranks.c10d.reductions import Reduction, reduction


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        (ReduceOp.SUM, [3, 9]),
        (ReduceOp.AVG, [1, 4]),
        (ReduceOp.PRODUCT, [2, 20]),
        (ReduceOp.MIN, [1, 4]),
        (ReduceOp.MAX, [2, 5]),
        (ReduceOp.BAND, [0, 4]),
        (ReduceOp.BOR, [3, 5]),
        (ReduceOp.BXOR, [3, 1]),
        (premul_sum(2.0), [6, 18]),
        (premul_sum(torch.tensor([2.0])), [6, 18]),
    ],
    ids=str,
)
def test_whole_numbers_are_reduced_as_torch_says(op, expected):
    values = [torch.tensor([1, 4]), torch.tensor([2, 5])]
    assert reduction(op, 2, of="all_reduce").of_tensors(values).tolist() == expected


def test_factors_go_before_and_parts_after():
    halves = reduction(premul_sum(0.5), 2, of="all_reduce")
    assert halves == Reduction("sum", 0.5, 1)
    assert halves.before(jnp.ones(1, jnp.bfloat16)).dtype == jnp.bfloat16
    mean = reduction(ReduceOp.AVG, 4, of="all_reduce")
    assert mean == Reduction("sum", 1.0, 4) and mean.before(jnp.ones(1)) == 1
    assert mean.after(jnp.ones(1)) == 0.25 and mean.after(jnp.full(1, 7)) == 1
    values = [torch.tensor([1.0 + 2.0j])] * 4
    assert mean.of_tensors(values).tolist() == [1.0 + 2.0j]


def test_a_factor_must_be_given():
    with pytest.raises(ValueError, match=r"all_reduce: PREMUL_SUM has no factor; give it one"):
        reduction(ReduceOp.PREMUL_SUM, 2, of="all_reduce")


def test_unknown_reductions_are_named():
    with pytest.raises(NotImplementedError, match="reduce: the xla backend does not have no such"):
        reduction("no such", 2, of="reduce")
