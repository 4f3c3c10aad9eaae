"""Sums, products and quotients of sparse tensors: dtypes, what is written, torch's refusals."""

import itertools

import pytest
import torch

import torch_xdist.core.torch_side.registration  # noqa: F401

OPERATORS = [
    *("add", "sub", "mul", "div", "floor_divide"),
    *("add_", "sub_", "mul_", "div_", "floor_divide_"),
]
# What stands on both sides: sparse, dense, 0-d, a Python number.
SIDES = ["ss", "sd", "ds", "s0", "0s", "sn", "ns"]
# Nothing is written into a Python number.
CASES = [
    (name, sides)
    for name, sides in itertools.product(OPERATORS, SIDES)
    if not (name.endswith("_") and sides[0] == "n")
]
DTYPES = [
    (torch.float32, torch.float32),
    (torch.int32, torch.float32),
    (torch.float32, torch.float64),
    (torch.uint8, torch.int8),
]


def operand(side, dtype, is_coalesced):
    """Without an index that stands twice where it is coalesced; strided ones have no zeros."""
    places = [[0, 1, 2, 2], [1, 0, 1, 2]] if is_coalesced else [[0, 1, 1, 2], [1, 0, 0, 2]]
    x = torch.sparse_coo_tensor(
        torch.tensor(places), torch.arange(1, 5).to(dtype), (3, 3), check_invariants=False
    )
    if side == "s":
        return x.coalesce() if is_coalesced else x
    if side == "d":
        return x.to_dense() + torch.ones(3, 3).to(dtype)
    return torch.tensor(2).to(dtype) if side == "0" else 2.5 if dtype.is_floating_point else 2


def outcome(device, name, operands):
    """The dtype, layout and numbers of a result, or torch's refusal."""
    one, other = (x.clone().to(device) if isinstance(x, torch.Tensor) else x for x in operands)
    run = getattr(torch.Tensor if isinstance(one, torch.Tensor) else torch, name)
    try:
        result = run(one, other)
    except RuntimeError as error:
        return str(error).split("\n")[0]
    assert not name.endswith("_") or result is one
    is_sparse = result.is_sparse
    return result.dtype, is_sparse, (result.to_dense() if is_sparse else result).tolist()


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
@pytest.mark.parametrize(("name", "sides"), CASES)
def test_operands_of_all_kinds_give_what_the_cpu_gives(name, sides):
    for (first, second), is_coalesced in itertools.product(DTYPES, (True, False)):
        operands = operand(sides[0], first, is_coalesced), operand(sides[1], second, is_coalesced)
        want, got = (outcome(device, name, operands) for device in ("cpu", "xla"))
        if isinstance(want, str):
            # Of entries that stand twice torch leaves out the name of the operation.
            assert isinstance(got, str) and got.startswith(want), (first, second, is_coalesced)
        else:
            assert got == want, (first, second, is_coalesced)


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
def test_bools_are_subtracted_from_no_sparse_tensor():
    for device in ("cpu", "xla"):
        x = operand("s", torch.bool, True).to(device)
        with pytest.raises(RuntimeError, match="Subtraction, the `-` operator, with two bool"):
            x.sub_(x)


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
@pytest.mark.parametrize("mode", ["floor", "trunc", None])
def test_a_rounded_quotient_is_one_of_sums(mode):
    x = operand("s", torch.float32, False)
    want = torch.div(x, 2.0, rounding_mode=mode).to_dense()
    assert torch.equal(torch.div(x.to("xla"), 2.0, rounding_mode=mode).to_dense().cpu(), want)
