"""What runs between two flips runs from the end."""

import pytest
import torch

import torch_xla
from torch_xdist.core.devices import device as devices_here
from torch_xdist.core.rows import flipped_runs
from torch_xdist.core.trace.trace import rows_of

RUNS = {
    "sums": lambda x: x.flip(1).cumsum(1).flip(1),
    "by another count of the dim": lambda x: x.flip(-1).cumsum(dim=1).flip([-1]),
    "in another dtype": lambda x: x.flip(0).cumsum(0, dtype=torch.double).flip(0),
    "of half precision": lambda x: x.bfloat16().flip(1).cumsum(1).flip(1),
    "logarithms of sums": lambda x: x.flip(1).logcumsumexp(1).flip(1),
    "of integers": lambda x: (x * 9).int().flip(1).cumsum(1).flip(1),
}
OTHERS = {
    "along another dim": lambda x: x.flip(0).cumsum(1).flip(0),
    "of which only one is turned around": lambda x: x.flip(1).cumsum(1),
    "turned around elsewhere afterwards": lambda x: x.flip(1).cumsum(1).flip(0, 1),
    "products": lambda x: x.flip(1).cumprod(1).flip(1),
}


def numbers(rows: int = 5, columns: int = 83) -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randn(rows, columns)


def changed(tensors: list[torch.Tensor]) -> list[str]:
    """The names of the pending rows that are others afterwards."""
    entries = devices_here.trace_of(devices_here.default_index()).tape.entries
    assert tensors
    after = rows_of(flipped_runs.from_the_end(entries))
    return [row[0].name for (_, row), (_, was) in zip(after, rows_of(entries)) if row is not was]


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_what_runs_from_the_end_is_one_row_with_torchs_values(run):
    torch_xla.sync()
    found = run(numbers().to("xla"))
    assert len(changed([found])) == 1
    torch.testing.assert_close(found.cpu(), run(numbers()))


@pytest.mark.parametrize("run", OTHERS.values(), ids=OTHERS)
def test_whatever_else_is_between_flips_stays(run):
    torch_xla.sync()
    found = run(numbers().to("xla"))
    assert changed([found]) == []
    torch.testing.assert_close(found.cpu(), run(numbers()))


def test_what_is_read_in_between_is_what_it_was():
    def run(x):
        turned = x.flip(1)
        sums = turned.cumsum(1)
        return turned * 2, sums.sin(), sums.flip(1)

    for got, expected in zip(run(numbers().to("xla")), run(numbers())):
        torch.testing.assert_close(got.cpu(), expected)


@pytest.mark.parametrize("name", ["cumsum", "logcumsumexp"])
def test_gradients_run_from_the_end_and_their_gradients_too(name):
    def gradients(x):
        x.requires_grad_()
        first = torch.autograd.grad(getattr(x, name)(1).sin().sum(), x, create_graph=True)[0]
        return first, torch.autograd.grad(first.square().sum(), x)[0]

    for got, expected in zip(
        gradients(numbers().double().to("xla")), gradients(numbers().double())
    ):
        torch.testing.assert_close(got.cpu(), expected)


def test_the_program_of_a_gradient_turns_nothing_around():
    x = numbers().to("xla").requires_grad_()
    torch_xla.sync()
    x.cumsum(1).sin().sum().backward()
    assert "reverse(" not in str(torch_xla._XLAC._get_xla_tensors_hlo([x.grad]))
