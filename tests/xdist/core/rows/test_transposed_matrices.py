"""A transposed matrix is multiplied with a vector as it lies."""

import pytest
import torch

import torch_xla
from torch_xdist.core.devices import device as devices_here
from torch_xdist.core.rows import transposed_matrices
from torch_xdist.core.trace.trace import rows_of

TURNED = {
    "t": lambda x, v: torch.mv(x.t(), v),
    "mT": lambda x, v: x.mT @ v,
    "permute": lambda x, v: torch.mv(x.permute(-1, 0), v),
    "with a sum": lambda x, v: torch.mv(x.transpose(0, 1), v) + 1,
    "of integers": lambda x, v: torch.mv((x * 9).long().t(), (v * 9).long()),
    "of halves": lambda x, v: torch.mv(x.bfloat16().t(), v.bfloat16()),
    "of complex numbers": lambda x, v: torch.mv((x * (1 + 2j)).t(), v + 1j),
}
OTHERS = {
    "as it lies": lambda x, v: torch.mv(x, v),
    "a permute that moves nothing": lambda x, v: torch.mv(x.permute(0, 1), v),
    "of two matrices": lambda x, v: x.t() @ v[:, None],
}


def operands() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.randn(7, 7), torch.randn(7)


def changed(tensors: list[torch.Tensor]) -> int:
    """How many of the pending rows are others afterwards."""
    entries = devices_here.trace_of(devices_here.default_index()).tape.entries
    assert tensors
    after = rows_of(transposed_matrices.as_they_lie(entries))
    return sum(row is not was for (_, row), (_, was) in zip(after, rows_of(entries)))


def check(product, count: int) -> None:
    torch_xla.sync()
    found = product(*[x.to("xla") for x in operands()])
    assert changed([found]) == count
    torch.testing.assert_close(found.cpu(), product(*operands()))


@pytest.mark.parametrize("product", TURNED.values(), ids=TURNED)
def test_it_is_not_turned_around(product):
    check(product, 1)


@pytest.mark.parametrize("product", OTHERS.values(), ids=OTHERS)
def test_other_products_stay(product):
    check(product, 0)


def test_gradients_equal_eagers():
    def gradients(x, v):
        x.requires_grad_()
        v.requires_grad_()
        return torch.autograd.grad(torch.mv(x, v).sin().sum(), [x, v])

    expected = gradients(*operands())
    for got, want in zip(gradients(*[x.to("xla") for x in operands()]), expected):
        torch.testing.assert_close(got.cpu(), want)
