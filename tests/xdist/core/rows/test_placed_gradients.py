"""Gradients of parts of a tensor are put beside each other where they lie apart."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import torch_xla
from torch_xdist.core.devices import device as devices_here
from torch_xdist.core.rows import placed_gradients
from torch_xdist.core.trace.trace import rows_of

T = 6


def operand() -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randn(3, T, 4)


def steps(x):
    state = x[:, 0]
    for t in range(1, T):
        state = torch.tanh(state + x[:, t])
    return state


def of_halves(x):
    return (x[:, :3] * x[:, 3:]).float()


APART = {
    "all times of a loop": steps,
    "halves": lambda x: x[..., 2:].sin() * x[..., :2],
    "halves, and the whole": lambda x: (x[..., :2] * x[..., 2:]).sum() + (x * x).sum(),
    "some times": lambda x: x[:, 1] * x[:, 4],
    "one from the end": lambda x: x[:, -1] * x[:, -3] * x[:, 0],
    "times and a slice": lambda x: x[:, 0] * x[:, 1:3].sum(1) * x[:, 5],
    "the same twice": lambda x: x[:, 1].sin() + x[:, 1].cos() * x[:, 2],
    "slices that lie over each other": lambda x: x[:, :3] * x[:, 1:4] * x[:, 2:5],
    "of two dims": lambda x: x[0] * x[1] + (x[:, 0] * x[:, 1]).sum(),
    "of halves": lambda x: of_halves(x.bfloat16()),
}
OTHERS = {
    "one part": lambda x: x[:, 1] * 2,
    "one part and the whole": lambda x: (x[:, 1] * 2).sum() + x.sin().sum(),
    "every second": lambda x: x[:, ::2] * x[:, 1::2],
    "parts of no elements": lambda x: x[:, 1:1].sum() + x[:, 2:2].sum() + x.sum(),
    "sums with a factor": lambda x: torch.add(x, x.sin(), alpha=2),
}


def gradient(function, x: torch.Tensor) -> torch.Tensor:
    leaf = x.clone().requires_grad_()
    return torch.autograd.grad(function(leaf).sum(), leaf)[0]


def joined() -> int:
    """How many of the pending rows are others afterwards."""
    entries = devices_here.trace_of(devices_here.default_index()).tape.entries
    after = rows_of(placed_gradients.beside_each_other(entries))
    return sum(row is not was for (_, row), (_, was) in zip(after, rows_of(entries)))


def check(function, counts: tuple[int, ...]) -> None:
    torch_xla.sync()
    found = gradient(function, operand().to("xla"))
    assert joined() in counts
    expected = gradient(function, operand())
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("function", APART.values(), ids=APART)
def test_they_are_one_row(function):
    check(function, (1, 2))


@pytest.mark.parametrize("function", OTHERS.values(), ids=OTHERS)
def test_other_sums_stay(function):
    check(function, (0,))


def test_a_sum_that_is_read_elsewhere_too_is_not_taken_apart():
    def outer(x):
        x = x.clone()
        first = x[:, 0] * x[:, 1]
        return first.sum() + (x[:, 2] * x[:, 3]).sum()

    check(outer, (1,))


spans = st.tuples(st.integers(0, 2), st.integers(0, 5), st.integers(1, 6), st.booleans())


@settings(max_examples=25, deadline=None)
@given(st.lists(spans, min_size=2, max_size=7))
def test_any_parts_give_eagers_sums(parts):
    """Integers, so that sums are exact and what is lost or taken twice shows."""
    shape = (4, 6, 5)

    def function(x):
        total = x.new_zeros(())
        for factor, (dim, begin, size, is_index) in enumerate(parts, 1):
            begin %= shape[dim]
            part = (
                x.select(dim, begin)
                if is_index
                else x.narrow(dim, begin, min(size, shape[dim] - begin))
            )
            total = total + (part * factor).sum()
        return total

    x = torch.ones(shape)
    assert torch.equal(gradient(function, x.to("xla")).cpu(), gradient(function, x))
