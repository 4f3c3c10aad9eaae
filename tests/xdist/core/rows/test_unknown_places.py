"""Rows of many places read their place, so that their kernels are of one form."""

import pytest
import torch

import torch_xla
from torch_xdist.core.devices import device as devices_here
from torch_xdist.core.rows import unknown_places
from torch_xdist.core.trace.trace import rows_of


def told() -> int:
    """How many of the pending rows are others afterwards."""
    entries = devices_here.trace_of(devices_here.default_index()).tape.entries
    after = rows_of(unknown_places.of_many(entries))
    return sum(row is not was for (_, row), (_, was) in zip(after, rows_of(entries)))


def fed_apart() -> int:
    """How many kinds of the pending rows read their numbers at places of their own."""
    entries = devices_here.trace_of(devices_here.default_index()).tape.entries
    return len(unknown_places.of_numbers(entries))


def read(x, times, dim=1):
    return sum(x.select(dim, t) * (t + 1) for t in times)


def written(x, times):
    out = torch.zeros_like(x)
    for t in times:
        out[:, t] = x[:, t] * (t + 1)
    return out


@pytest.fixture
def x():
    torch.manual_seed(0)
    torch_xla.sync()
    return torch.randn(3, 12, 12)


@pytest.mark.parametrize(
    ("function", "count"),
    [
        (lambda x: read(x, range(8)), 8),
        (lambda x: read(x, range(-12, 0), 2), 12),
        (lambda x: read(x.int(), range(12)), 12),
        (lambda x: written(x, range(9)), 18),
    ],
    ids=["reads", "from the end", "of integers", "writes"],
)
def test_many_are_told_their_place(x, function, count):
    found = function(x.to("xla"))
    assert told() == count
    torch.testing.assert_close(found.cpu(), function(x))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: read(x, range(7)),
        lambda x: read(x, range(6)) + read(x, range(6), 2),
        lambda x: x[:, 1:3] * x[:, 2:4],
    ],
    ids=["few", "few of each dim", "slices"],
)
def test_few_stay(x, function):
    found = function(x.to("xla"))
    assert told() == 0
    torch.testing.assert_close(found.cpu(), function(x))


def shrunken(x, rates):
    for rate in rates:
        x = torch.sin(x.add(x, alpha=-rate))
    return x


def test_many_rows_of_a_kind_read_their_numbers_at_places_of_their_own(x):
    found = shrunken(x.to("xla"), [0.1 * i for i in range(8)])
    assert fed_apart() == 1
    hlo = torch_xla._XLAC._get_xla_tensors_hlo([found])
    assert hlo.count(" opt-barrier(") == 8 and hlo.count(" slice(") == 0
    torch.testing.assert_close(found.cpu(), shrunken(x, [0.1 * i for i in range(8)]))


def test_their_numbers_may_be_others_in_the_next_step_and_whole_ones(x):
    def moved(x, first):
        for i in range(first, first + 9):
            x = torch.remainder(x * 10 + i, i + 1)
        return x

    on_device = x.int().to("xla")
    for first in (100, 200):
        found = moved(on_device, first)
        assert fed_apart() >= 1
        torch.testing.assert_close(found.cpu(), moved(x.int(), first))


def test_the_numbers_of_few_rows_of_a_kind_are_read_as_they_lie(x):
    found = shrunken(x.to("xla"), [0.1 * i for i in range(7)])
    assert fed_apart() == 0
    hlo = torch_xla._XLAC._get_xla_tensors_hlo([found])
    assert hlo.count(" opt-barrier(") == 0 and hlo.count(" slice(") == 7
